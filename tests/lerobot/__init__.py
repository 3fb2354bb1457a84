"""Tests with the real lerobot, which is told here to stay offline, and to keep what it caches where it goes again."""

import atexit
import os
import shutil
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"  # it asks for its datasets online, whatever lies on the disk
os.environ["HF_HOME"] = tempfile.mkdtemp(prefix="rlds2buf-lerobot-")
os.environ.setdefault("SVT_LOG", "1")  # the encoder tells its settings for every episode
atexit.register(shutil.rmtree, os.environ["HF_HOME"], ignore_errors=True)
