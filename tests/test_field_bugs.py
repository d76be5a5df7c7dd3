"""Faults of this field on checkpoints, resume, data, logging and Hydra: each is a test here, or named with where it is
tested, or with why it cannot occur. The numbers are those of the project's list of field bugs, groups D to G."""

import multiprocessing
import re
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from running import NANO, ROOT, run, start

from posenc_train.config import UserError, compose, lengths, run_folder
from posenc_train.report import store
from posenc_train.training.module import Training

ELSEWHERE = {
    27: "test_text.py::test_field_bug_27_bos_takes_the_first_place_of_every_window_and_is_no_target",
    28: "test_protocols.py::test_field_bug_28_a_row_is_what_was_fed_and_a_smaller_stride_sees_more",
    29: "test_end_to_end.py::test_nothing_long_enough_is_said_before_training",
    31: "test_protocols.py::test_field_bug_31_every_target_weighs_the_same_whatever_the_batch",
    35: "test_evaluate.py::test_a_zero_head_is_uniform_exactly",
    38: "test_protocols.py::test_out_of_memory_at_one_length_costs_that_cell_alone",  # and the tests behind it
    39: "test_text.py::test_field_bug_39_a_row_depends_on_seed_step_and_row_only",
    44: "test_text.py::test_field_bug_44_evaluation_windows_are_fixed_by_data_length_and_evaluation_seed",
    47: "test_resume.py::test_torture",  # with dropout; once more with loading processes
    52: "test_wandb.py::test_field_52_names_do_not_depend_on_the_lengths_asked_for",
    57: "test_config.py::test_a_conf_beside_the_caller_is_not_picked_up_and_an_installed_one_is",
    60: "test_distributed.py::test_two_processes_are_one",
    62: "test_wandb.py::test_field_62_no_order_of_calls_loses_a_number",
    63: "test_wandb.py::test_field_63_a_server_out_of_reach_makes_it_offline_in_seconds",
    64: "test_wandb.py::test_field_64_long_names_are_shortened_and_stay_different",
    66: "test_wandb.py::test_field_66_the_config_is_nested_plain_values",
    68: "test_text.py::test_field_bug_68_what_the_hub_refuses_is_told_in_a_line_with_a_remedy",
    69: "test_text.py::test_field_bug_69_without_network_what_was_prepared_is_used_and_nothing_else",
    71: "test_text.py::test_field_bug_71_the_ids_are_the_same_for_any_number_of_processes",
    72: "test_text.py::test_field_bug_72_nothing_is_dropped_without_being_counted",
}
CANNOT_OCCUR = {
    67: "a run logs one table, once, with all its rows: nothing replaces it and the number of files does not grow",
}
HERE = (45, 46, 49, 50, 51, 53, 54, 56, 58)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    root = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        return root / run_folder(run("train", *NANO, "logger=none", "optim.betas=[0.9,0.99]"))


def test_every_number_is_accounted_for():
    assert not {*ELSEWHERE} & {*CANNOT_OCCUR} and not {*HERE} & ({*ELSEWHERE} | {*CANNOT_OCCUR})
    here = {int(n) for n in re.findall(r"def test_field_bug_(\d+)", Path(__file__).read_text())}
    assert here == set(HERE)
    for place in ELSEWHERE.values():
        file, name = place.split("::")
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(), place


def test_field_bug_45_checkpoints_load_with_weights_only(trained):
    state = torch.load(trained / "last.ckpt")  # torch's default: weights_only=True
    assert state["global_step"] == 12


def test_field_bug_46_no_extra_step_and_a_checkpoint_however_rare_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    overrides = [*NANO, "logger=none", "trainer.checkpoint_every=120"]
    folder = run_folder(run("train", *overrides))
    first = torch.load(folder / "last.ckpt")
    (folder / "rows.jsonl").unlink()  # killed between training and evaluation
    run("train", *overrides)
    again = torch.load(folder / "last.ckpt")
    assert first["global_step"] == again["global_step"] == 12
    assert all(torch.equal(first["state_dict"][key], again["state_dict"][key]) for key in first["state_dict"])
    assert store.load(folder / "rows.jsonl")


def test_field_bug_49_there_is_no_validation_loop_that_a_sanity_check_could_run():
    assert "validation_step" not in vars(Training)


def test_field_bug_50_a_step_is_an_optimizer_step(trained):
    """Two parameter groups, one optimizer: 12 steps, 12 batches, the schedule at its end, the tokens of 12 batches."""
    state = torch.load(trained / "last.ckpt")
    counts = {int(value["step"]) for value in state["optimizer_states"][0]["state"].values()}
    assert counts == {12} and len(state["optimizer_states"][0]["param_groups"]) == 2
    assert state["lr_schedulers"][0]["last_epoch"] == 12
    assert {row.tokens_seen for row in store.load(trained / "rows.jsonl")} == {12 * 4 * 16}


def test_field_bug_51_the_folder_as_printed_can_be_given_back_unquoted(trained, monkeypatch):
    monkeypatch.chdir(trained.parents[2])
    folder = trained.relative_to(trained.parents[2])
    assert re.fullmatch(r"[A-Za-z0-9._/-]+", str(folder))
    assert compose("evaluate", [f"run={folder}"])["run"] == str(folder)
    assert all("=" not in path.name for path in trained.rglob("*"))


def test_field_bug_53_the_checkpoint_alone_gives_every_number_again(trained, tmp_path, monkeypatch):
    rows = [row for row in store.load(trained / "rows.jsonl") if row.protocol != "training"]
    assert {row.checkpoint for row in rows} == {"last@12"}
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "default" / trained.name
    folder.mkdir(parents=True)
    for file in ("config.yaml", "last.ckpt"):
        shutil.copy(trained / file, folder)
    run("evaluate", f"run={folder}")
    again = {row.key(): row for row in store.load(folder / "rows.jsonl")}
    assert again.keys() == {row.key() for row in rows}
    assert all(again[row.key()].total == pytest.approx(row.total, rel=1e-6) for row in rows)


def test_field_bug_54_what_is_stored_is_plain_and_resolved(trained):
    def plain(value) -> bool:
        if isinstance(value, dict):
            return all(type(key) is str and plain(item) for key, item in value.items())
        return all(map(plain, value)) if type(value) is list else type(value) in (str, int, float, bool, type(None))

    config = torch.load(trained / "last.ckpt")["config"]
    assert plain(config) and config["optim"]["betas"] == [0.9, 0.99] and "${" not in str(config)
    assert config == yaml.safe_load((trained / "config.yaml").read_text())


def test_field_bug_56_the_same_command_twice_at_once(tmp_path, monkeypatch):
    """One trains; the other says so and ends, and nothing of the first is touched."""
    monkeypatch.chdir(tmp_path)
    overrides = [*NANO, "logger=none"]
    processes = [start("train", *overrides) for _ in range(3)]
    for process in processes:
        process.join()
    refused = sum(process.exitcode != 0 for process in processes)
    said = (tmp_path / "out.txt").read_text()
    assert refused + said.count("finished before") == 2
    assert ("another process is at work on this run" in said) == (refused > 0)
    folder = run_folder(compose("train", overrides))
    assert torch.load(folder / "last.ckpt")["global_step"] == 12
    keys = [row.key() for row in store.load(folder / "rows.jsonl")]
    assert len(keys) == len(set(keys))
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    "override, means",
    [
        ("lengths=512", [512]),
        ("lengths=[]", UserError),
        ("lengths=", UserError),
        ("lengths=None", UserError),
        ("init=None", UserError),
        ("model.qk_norm=on", UserError),
        ("lengths=[64.5]", UserError),
        ("+lengths.2=512", UserError),
    ],
)
def test_field_bug_58_an_override_has_its_obvious_meaning_or_is_refused(override, means):
    from posenc_train.config import check

    try:
        cfg = compose("train", [override, "protocol=[nonoverlapping]"])
        check(cfg)
        found = lengths(cfg)
    except UserError as error:
        found = UserError
        assert override.lstrip("+").split("=")[0].split(".")[0] in str(error)
    assert found == means
