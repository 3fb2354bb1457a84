"""A Reverb server as a process of its own: ``python -m tests.full.server_main CONFIG``.

CONFIG is JSON: ``{"servers": [{"port": 0, "tables": [...], "checkpoint": null}]}``; see `table_of`.
Prints one line with the ports once all of them listen, and serves until it is killed.
"""

from __future__ import annotations

import collections
import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import reverb
import tensorflow as tf

SELECTORS = {
    "uniform": reverb.selectors.Uniform,
    "fifo": reverb.selectors.Fifo,
    "lifo": reverb.selectors.Lifo,
    "prioritized": lambda: reverb.selectors.Prioritized(1.0),
    "max_heap": reverb.selectors.MaxHeap,
    "min_heap": reverb.selectors.MinHeap,
}


def limiter_of(kind, *arguments):
    return getattr(reverb.rate_limiters, kind)(*arguments)


def signature_of(value):
    """``[shape, dtype]``, ``{"dict": {}}``, ``{"tuple": []}`` or ``{"named": [NAME, [[KEY, VALUE], ...]]}``."""
    if isinstance(value, list):
        shape, dtype = value
        return tf.TensorSpec(shape, getattr(tf, dtype))
    if "dict" in value:
        return {key: signature_of(child) for key, child in value["dict"].items()}
    if "tuple" in value:
        return tuple(signature_of(child) for child in value["tuple"])
    name, fields = value["named"]
    kind = collections.namedtuple(name, [key for key, _ in fields])
    return kind(*(signature_of(child) for _, child in fields))


def table_of(config):
    signature = config.get("signature")
    return reverb.Table(
        name=config["name"],
        sampler=SELECTORS[config.get("sampler", "uniform")](),
        remover=SELECTORS[config.get("remover", "fifo")](),
        max_size=config.get("max_size", 1_000_000),
        max_times_sampled=config.get("max_times_sampled", 0),
        rate_limiter=limiter_of(*config.get("limiter", ["MinSize", 1])),
        signature=None if signature is None else signature_of(signature),
    )


def main():
    servers = []
    for config in json.loads(sys.argv[1])["servers"]:
        folder = config.get("checkpoint")
        servers.append(
            reverb.Server(
                [table_of(table) for table in config["tables"]],
                port=config.get("port") or None,
                checkpointer=None if folder is None else reverb.platform.checkpointers_lib.DefaultCheckpointer(folder),
            )
        )
    print(json.dumps([server.port for server in servers]), flush=True)
    sys.stdin.read()  # ends with the tests' process, however that ends


if __name__ == "__main__":
    main()
