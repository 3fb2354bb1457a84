"""What lerobot does with a dataset: converts it, edits it, trains on it."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

from tests.lerobot.opened import open_set


def converted(folder: Path, target: Path) -> Path:
    """lerobot's own converter of v2.1 to v3.0 on a copy in a folder `target`."""
    from lerobot.datasets.v30.convert_dataset_v21_to_v30 import convert_dataset

    shutil.copytree(folder, target / folder.name)
    convert_dataset(folder.name, root=target, push_to_hub=False)
    return target / folder.name


def edited(folder: Path, target: Path) -> dict[str, tuple[Path, list[int]]]:
    """What lerobot's tools make of a dataset of 3 episodes or more, with the episodes of it that each holds."""
    from lerobot.datasets import dataset_tools

    dataset = open_set(folder)
    every = list(range(dataset.num_episodes))
    held = {"deleted": [e for e in every if e != 1], "one": every[:2], "rest": every[2:], "merged": every * 2}
    dataset_tools.delete_episodes(dataset, [1], target / "deleted", "test/deleted")
    dataset_tools.split_dataset(dataset, {"one": every[:2], "rest": every[2:]}, target)
    dataset_tools.merge_datasets([dataset, dataset], "test/merged", target / "merged")
    return {name: (target / name, episodes) for name, episodes in held.items()}


def small_policy() -> Any:
    """ACT with as few weights as it takes."""
    from lerobot.policies.act.configuration_act import ACTConfig

    return ACTConfig(
        device="cpu",
        push_to_hub=False,
        pretrained_backbone_weights=None,
        chunk_size=4,
        n_action_steps=4,
        dim_model=32,
        n_heads=2,
        dim_feedforward=32,
        n_encoder_layers=1,
        n_vae_encoder_layers=1,
        latent_dim=4,
    )


def trained(folder: Path, output: Path, steps: int = 2) -> dict[str, Any]:
    """A few steps of lerobot's training loop with a small ACT, on the processor; returns the features that it takes.

    Asserts that every step's loss is a number, and that a checkpoint lies in `output`.
    """
    from lerobot.configs.default import DatasetConfig
    from lerobot.configs.train import TrainPipelineConfig
    from lerobot.scripts import lerobot_train

    policy = small_policy()
    config = TrainPipelineConfig(
        # The pictures' own statistics, not those of ImageNet.
        dataset=DatasetConfig(f"test/{folder.name}", root=str(folder), use_imagenet_stats=False),
        policy=policy,
        output_dir=output,
        num_workers=0,
        batch_size=4,
        steps=steps,
        log_freq=1,
        eval_freq=0,
        save_freq=steps,
    )
    losses: list[float] = []
    update = lerobot_train.update_policy

    def noted(tracker: Any, *args: Any, **kwargs: Any) -> Any:
        out = update(tracker, *args, **kwargs)
        losses.append(out[0].loss.val)
        return out

    lerobot_train.update_policy = noted
    try:
        lerobot_train.train(config)
    finally:
        lerobot_train.update_policy = update
    assert len(losses) == steps and all(math.isfinite(loss) for loss in losses)
    assert list(output.glob("checkpoints/*/pretrained_model/model.safetensors"))
    return {**policy.input_features, **policy.output_features}
