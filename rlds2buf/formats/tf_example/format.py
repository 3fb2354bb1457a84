"""Raw ``tf.train.Example`` records; nothing in such files tells how to read them."""

from __future__ import annotations

from rlds2buf.io.format import Format, Refusal
from rlds2buf.io.look import Look

__all__ = ["FORMATS"]


def _is_tf_agents(look: Look) -> bool:
    if look.is_folder:
        return any(f"{name}.spec" in look.names for name in look.names)
    if look.path.suffix == ".spec":
        return look.path.with_suffix("").is_file()
    return look.is_tfrecord() and look.path.with_name(look.path.name + ".spec").is_file()


FORMATS = (
    Format(
        "tf-example",
        "raw tf.train.Example records",
        source="rlds2buf.formats.tf_example.source:TfExampleSource",
        takes=("budget",),
        suffixes=(".tfrecord", ".tfrecords"),
        refusals=(
            Refusal(
                _is_tf_agents,
                lambda look: (
                    "TF-Agents' own transition records (TFRecords beside a .spec file), which are not read: "
                    "they hold shuffled transitions, not episodes"
                ),
            ),
            Refusal(
                lambda look: look.path.is_file() and look.is_tfrecord(),
                lambda look: (
                    'TFRecords, which do not tell what they hold; format="tf-example" with features= reads records '
                    "whose features you can name"
                ),
            ),
        ),
    ),
)
