import base64
import json
from pathlib import Path

import numpy as np
import pytest

from factorized_fl.core.errors import UserError
from factorized_fl.report import collect as collecting
from factorized_fl.report.collect import collect
from factorized_fl.report.tables import verdict_lines
from factorized_fl.results.comparison import compare_methods
from factorized_fl.results.reading import read_run
from tests.report.synthetic import write_run


def only(path: Path, **more) -> dict:
    (run,) = collect([path], **more)["runs"]
    return run


def matrix(described: dict, at: int, count: int = 4) -> np.ndarray:
    steps = np.frombuffer(base64.b64decode(described["data"][at]), dtype=np.uint8).reshape(count, count)
    values = described["low"] + steps / 254 * (described["high"] - described["low"])
    return np.where(steps == 255, np.nan, values)


def test_the_verdict_comes_first_and_in_words(tmp_path: Path) -> None:
    write_run(tmp_path / "stand-alone-seed1", "stand-alone", correct=[50, 50, 50, 50])
    run = only(write_run(tmp_path / "x", correct=[80, 60, 50, 20]))
    assert [verdict["word"] for verdict in run["verdicts"]] == ["undecided"] * 4
    assert [verdict["difference"] for verdict in run["verdicts"]] == pytest.approx([0.3, 0.1, 0.0, -0.3])
    start, end = "52.5% accuracy on average, +2.5 points (95% interval -", "over Stand-Alone. One seed cannot decide"
    assert run["headline"].startswith(start)
    assert end in run["headline"]
    assert "'stand-alone-seed1'" in run["baseline"]  # found beside the run


def test_no_baseline_is_said_plainly_with_the_command_that_makes_one(tmp_path: Path) -> None:
    run = only(write_run(tmp_path / "run"))
    assert (run["verdicts"], run["baseline"]) == ([], None)
    assert "Run the control to see whether federation helped." in run["headline"]
    assert run["baseline_command"] == f"ffl run {tmp_path}/run/config.toml --data FOLDER --set control=true"


def test_commands_name_the_run_as_it_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that they work in the folder where the page was asked for, and tell nobody where that folder is."""
    write_run(tmp_path / "runs" / "a")
    write_run(tmp_path / "runs" / "b", "fedavg")
    for folder, given, commands in (
        (tmp_path, "runs/a", ["ffl run runs/a/config.toml"]),
        (tmp_path, "runs", ["ffl run runs/a/config.toml", "ffl run runs/b/config.toml"]),
        (tmp_path / "runs" / "a", ".", ["ffl run config.toml"]),
    ):
        monkeypatch.chdir(folder)
        document = collect([Path(given)])
        assert [run["command"] for run in document["runs"]] == [f"{command} --data FOLDER" for command in commands]
        named = [f"{command} --data FOLDER --set control=true" for command in commands]
        assert [run["baseline_command"] for run in document["runs"]] == named
        assert all(Path(command.split()[2]).is_file() for command in commands)
        assert str(tmp_path) not in json.dumps(document)


def test_a_model_that_is_still_trained_alone_judges_nobody_unless_it_is_named(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    beside = write_run(tmp_path / "stand-alone-seed1", "stand-alone", complete=False)
    assert (only(path)["verdicts"], only(path)["baseline"]) == ([], None)
    assert "It is in round" in only(path, baseline=beside)["baseline"]


def test_baseline_by_name_must_be_of_the_same_clients_and_seed(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    base = write_run(tmp_path / "alone", "stand-alone", rounds=5)
    run = only(path, baseline=base)
    assert len(run["verdicts"]) == 4
    assert "rounds 5 instead of 3" in run["baseline"]
    with pytest.raises(UserError, match="train_share"):
        collect([path], baseline=write_run(tmp_path / "other", "stand-alone", train_share=0.5))
    with pytest.raises(UserError, match="give a control, or a run of Stand-Alone"):
        collect([path], baseline=write_run(tmp_path / "fedavg", "fedavg"))
    with pytest.raises(UserError, match="seeds differ"):
        collect([path], baseline=write_run(tmp_path / "seed2", "stand-alone", seed=2))


def test_a_baseline_of_several_runs_is_one_of_them(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / "a", "fedavg"), write_run(tmp_path / "b", "pfedpara")]
    document = collect(paths, baseline=write_run(tmp_path / "alone", "stand-alone"))
    assert document["comparison"]["variants"][0]["label"] == "Stand-Alone"
    assert all(len(run["verdicts"]) == 4 for run in document["runs"][:2])


def test_stand_alone_itself_is_what_has_to_be_beaten(tmp_path: Path) -> None:
    run = only(write_run(tmp_path / "run", "stand-alone"))
    assert run["headline"].startswith("Every client alone: 50.0%")
    assert run["verdicts"] == []


def test_curves_and_traffic(tmp_path: Path) -> None:
    run = only(write_run(tmp_path / "run", correct=[50, 60, 70, 80]))
    shares = np.frombuffer(base64.b64decode(run["curves"]["score"]["steps"]), dtype="<u2").reshape(4, 3)
    assert shares.tolist() == [[2500, 2500, 5000], [3000, 3000, 6000], [3500, 3500, 7000], [4000, 4000, 8000]]
    assert run["curves"]["score"]["low"] == 0
    assert run["curves"]["score"]["unit"] == pytest.approx(1e-4)
    assert run["curves"]["up"] == [4000, 4000, 4000]
    assert run["curves"]["down"] == [0, 2000, 2000]
    assert run["curves"]["seconds"] == [2.0, 2.0, 2.0]
    assert run["traffic"] == {
        "up": 12000,
        "down": 4000,
        "formula_a_bytes": 4 * (12 * 200 + 8 * 100),  # the first download is not counted
        "formula_b_bytes": 4 * (12 * 200 + 12 * 100),
        "formula_up": 4 * 12 * 200,
        "formula_down": 4 * 12 * 100,
        "roles": [
            {"role": "u", "up": 7200, "down": 3600},
            {"role": "fingerprint", "up": 3600, "down": 0},
            {"role": "headers", "up": 1200, "down": 400},
        ],
    }
    assert run["clients"][0]["traffic"] == [3000, 1000]


def test_matrices_means_matching_and_sparsity(tmp_path: Path) -> None:
    run = only(write_run(tmp_path / "run"))
    assert run["matrices"]["mixing"]["rounds"] == [2, 3]
    second = matrix(run["matrices"]["mixing"], 0)
    assert second[0] == pytest.approx([0.7, 0.3, 0, 0], abs=0.003)
    assert matrix(run["matrices"]["mixing"], 1)[0] == pytest.approx([0.7, 0, 0.3, 0], abs=0.003)
    similarity = matrix(run["matrices"]["matching"], 0)
    assert similarity[0, 1:] == pytest.approx([0.5, -0.25, -0.25], abs=0.003)
    assert np.isnan(similarity.diagonal()).all()
    assert run["means"]["matching"] == [[2, 3], [0.5, 0.5], [-0.25, -0.25]]
    assert run["means"]["u"] == [[1, 2, 3], [1, 1, 1], [1, 1, 1]]
    assert run["means"]["v"][1] == [0.25, 0.25, 0.25]
    # Of rounds 2 and 3 client 1 listened to client 2 in one, to client 3 in the other.
    assert matrix(run["matched"], 0)[0, 1:] == pytest.approx([0.5, 0.5, 0], abs=0.003)
    assert run["mu"] == {"layers": ["conv", "head"], "rounds": [1, 2, 3], "kept": [[1, 0.5], [1, 0.25], [1, 0.1667]]}
    assert run["confusion"][0] == [50, 25, 0, 0]


def test_who_did_not_take_part_received_nothing(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    kept = [line for line in lines if (line["round"], line["client"]) != (3, 0)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    run = only(path)
    assert np.isnan(matrix(run["matrices"]["mixing"], 1)[0]).all()
    assert matrix(run["matched"], 0)[0, 1:] == pytest.approx([1, 0, 0], abs=0.003)
    shares = np.frombuffer(base64.b64decode(run["curves"]["score"]["steps"]), dtype="<u2").reshape(4, 3)
    assert shares[0].tolist() == [2500, 2500, 65535]


def test_a_page_stays_small_and_says_what_it_leaves_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_run(tmp_path / "run", rounds=9)
    monkeypatch.setattr(collecting, "MATRIX_BUDGET", 2 * 16 * 17 // 4)  # a fourth of what 8 + 9 rounds would take
    run = only(path)
    assert run["matrices"]["mixing"]["rounds"] == [5, 9]  # the last one always
    assert run["matrices"]["u"]["rounds"] == [1, 5, 9]
    assert run["notes"] == ["The matrices of one round in 4 are shown, to keep this page small."]
    assert len(run["means"]["u"][0]) == 9  # means are of all rounds


def test_an_older_run_without_traces_roles_and_analysis(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", matrices=False)
    (path / "analysis.json").unlink()
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    old = [{k: v for k, v in line.items() if not k.endswith("_roles")} for line in lines]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in old))
    run = only(path)
    assert (run["matrices"], run["mu"], run["confusion"], run["traffic"]["roles"]) == ({}, None, [], [])
    assert [note.split(" ")[0] for note in run["notes"]] == ["analysis.json", "metrics.jsonl"]


# -- several runs


def test_methods_by_seeds(tmp_path: Path) -> None:
    for seed in (1, 2):
        write_run(tmp_path / f"stand-alone-seed{seed}", "stand-alone", seed=seed, correct=[50] * 4)
        write_run(tmp_path / f"fedavg-seed{seed}", "fedavg", seed=seed, correct=[80, 50, 50, 20 + 20 * seed])
    document = collect([tmp_path])
    comparison = document["comparison"]
    alone, fedavg = comparison["variants"]
    assert (alone["label"], fedavg["label"], fedavg["seeds"]) == ("Stand-Alone", "FedAvg", [1, 2])
    assert fedavg["accuracy"] == pytest.approx((0.55 + 0.60) / 2)
    assert fedavg["seed_spread"] == pytest.approx(0.05 / 2**0.5)
    assert fedavg["client_spread"] == pytest.approx((np.std([80, 50, 50, 40]) + np.std([80, 50, 50, 60])) / 200)
    assert (fedavg["helped"], fedavg["harmed"], fedavg["effect"]["mean"]) == (0, 0, 0.075)
    assert (fedavg["up"], fedavg["down"], fedavg["seconds"]) == (12000, 4000, 6.0)
    assert comparison["differences"]["0"]["1"]["clients"][0][:2] == (0, 0.3)
    assert comparison["differences"]["1"]["0"]["clients"][0][:2] == (0, -0.3)
    assert comparison["differences"]["control"] == {"0": None, "1": fedavg["effect"]}
    begin = "FedAvg has the highest mean accuracy, 57.5% over 2 seeds; alone it is 50.0%. That is +7.5 points (95% "
    assert comparison["headline"].startswith(begin)
    assert comparison["headline"].endswith("2 seeds: of 4 clients it helped 0 and harmed 0; 4 undecided.")
    assert document["notes"] == []


def test_equals_share_the_headline(tmp_path: Path) -> None:
    write_run(tmp_path / "alone", "stand-alone", correct=[40] * 4)
    write_run(tmp_path / "a", "fedavg")
    write_run(tmp_path / "b", "fedprox")
    assert collect([tmp_path])["comparison"]["headline"] == (
        "FedAvg and FedProx share the highest mean accuracy, 50.0% (one seed); alone it is 40.0%."
    )


def test_a_best_method_without_a_common_seed_is_not_said_to_have_helped(tmp_path: Path) -> None:
    write_run(tmp_path / "alone", "stand-alone", seed=1, correct=[40] * 4)
    write_run(tmp_path / "a", "fedavg", seed=2)
    comparison = collect([tmp_path])["comparison"]
    assert comparison["headline"] == "FedAvg has the highest mean accuracy, 50.0% (one seed); alone it is 40.0%."
    assert "| FedAvg | 1 | 50.00 | - | - | - | - | - |" in comparison["downloads"]["comparison.md"]


def test_a_comparison_that_goes_on_says_so(tmp_path: Path) -> None:
    write_run(tmp_path / "alone", "stand-alone", correct=[40] * 4)
    write_run(tmp_path / "a", "fedavg", complete=False)
    comparison = collect([tmp_path])["comparison"]
    assert comparison["headline"].startswith("Not every run has ended. So far FedAvg has the highest mean accuracy")
    assert [variant["complete"] for variant in comparison["variants"]] == [True, False]


def test_settings_that_differ_name_the_variants(tmp_path: Path) -> None:
    write_run(tmp_path / "a", options={"tau": 0.25})
    write_run(tmp_path / "b", options={"tau": 0.75})
    labels = [variant["label"] for variant in collect([tmp_path])["comparison"]["variants"]]
    assert labels == ["Factorized-FL (tau=0.25)", "Factorized-FL (tau=0.75)"]


def test_seeds_that_do_not_meet_and_runs_that_are_there_twice_are_told(tmp_path: Path) -> None:
    write_run(tmp_path / "alone", "stand-alone", seed=1)
    write_run(tmp_path / "one", "fedavg", seed=1)
    write_run(tmp_path / "two", "fedavg", seed=2)
    write_run(tmp_path / "zwei", "fedavg", seed=2)
    document = collect([tmp_path])
    assert document["notes"] == [
        "'zwei' is the same configuration as 'two': only the latter counts.",
        "FedAvg and Stand-Alone do not have the same seeds: they are compared over 1.",
    ]
    assert document["comparison"]["variants"][1]["effect"]["seeds"] == 1


def test_without_stand_alone_nobody_is_called_helped(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedavg")
    write_run(tmp_path / "b", "pfedpara")
    comparison = collect([tmp_path])["comparison"]
    assert comparison["reference"] is None
    assert comparison["variants"][0]["helped"] is None
    assert "Run the control to see whether federation helped." in comparison["headline"]


def test_runs_of_different_data_are_not_compared(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedavg")
    write_run(tmp_path / "b", "fedavg", permuted=False)
    with pytest.raises(UserError, match="permuted is True in one and False in another"):
        collect([tmp_path])
    write_run(tmp_path / "c", "fedavg", clients=6)
    with pytest.raises(UserError, match="clients is 4 in one and 6"):
        collect([tmp_path / "a", tmp_path / "c"])


def test_what_was_trained_differently_is_told(tmp_path: Path) -> None:
    for method, rate in (("stand-alone", 0.02), ("fedavg", 0.02), ("fedprox", 0.5)):
        write_run(tmp_path / method, method, lr=rate)
    banner = collect([tmp_path])["comparison"]["banner"]
    assert banner == "Not everything is equal: lr is 0.02 for Stand-Alone and FedAvg, 0.5 for FedProx."
    for method in ("fedper", "fedrep"):
        write_run(tmp_path / method, method, lr=0.02)
    banner = collect([tmp_path])["comparison"]["banner"]
    assert banner == "Not everything is equal: lr is 0.5 for FedProx, 0.02 for the others."


def test_options_that_mean_the_same_are_told_where_they_differ(tmp_path: Path) -> None:
    write_run(tmp_path / "alone", "stand-alone")
    write_run(tmp_path / "a", "factorized-fl", options={"sparsity": 0.1})
    write_run(tmp_path / "b", "factorized-peers")
    write_run(tmp_path / "c", "clustered-fl")  # its gamma is another than pFedPara's
    write_run(tmp_path / "d", "pfedpara")
    comparison = collect([tmp_path])["comparison"]
    said = "Not everything is equal: sparsity is 0.1 for Factorized-FL, 0.0005 for Factorized-Peers."
    assert comparison["banner"] == said


def test_stand_alone_as_the_control_of_others_is_no_row(tmp_path: Path) -> None:
    write_run(tmp_path / "fedavg-seed1", "fedavg")
    write_run(tmp_path / "fedper-seed1", "fedper", lr=0.5)
    write_run(tmp_path / "stand-alone-lr=0.5-control-seed1", "stand-alone", lr=0.5, correct=[40] * 4)
    comparison = collect([tmp_path])["comparison"]
    assert [row["label"] for row in comparison["variants"]] == ["FedAvg", "FedPer"]
    assert [row["alone"] for row in comparison["variants"]] == [None, None]
    assert comparison["variants"][1]["effect"]["mean"] == pytest.approx(0.1)


def test_a_method_that_did_not_activate_is_named_everywhere(tmp_path: Path) -> None:
    write_run(tmp_path / "alone", "stand-alone")
    write_run(tmp_path / "clustered", "clustered-fl")
    file = tmp_path / "clustered" / "summary.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "activated": False}))
    document = collect([tmp_path])
    assert [row["label"] for row in document["comparison"]["variants"]] == [
        "Stand-Alone",
        "Clustered-FL (did not activate)",
    ]
    said = "Clustered-FL did not activate: the step that distinguishes it never happened"
    assert any(note.startswith(said) for run in document["runs"] for note in run["notes"])
    rows = compare_methods({"clustered-fl": [read_run(tmp_path / "clustered")]})
    assert rows[0].inactive == 1
    assert any(line.startswith(said) for line in verdict_lines(rows))


def test_runs_of_different_images_are_not_compared(tmp_path: Path) -> None:
    """Of the second seed, where the first one's are the same."""
    for seed in (1, 2):
        for method in ("stand-alone", "fedavg"):
            file = write_run(tmp_path / f"{method}-seed{seed}", method, seed=seed) / "clients.json"
            mark = f"{seed}{method}" if seed == 2 else "same"
            file.write_text(json.dumps([client | {"images": mark} for client in json.loads(file.read_text())]))
    collect([tmp_path / "fedavg-seed1", tmp_path / "stand-alone-seed1", tmp_path / "fedavg-seed2"])
    with pytest.raises(UserError, match="'fedavg-seed2' and 'stand-alone-seed2' have different images"):
        collect([tmp_path])
    with pytest.raises(UserError, match=r"cannot be the reference of .* have different images"):
        collect([tmp_path / "fedavg-seed2"], baseline=tmp_path / "stand-alone-seed2")
    assert only(tmp_path / "fedavg-seed2")["baseline"] is None  # nor is it taken because it lies beside


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for name, words in (("nowhere", "does not exist"), ("file", "is a file"), ("empty", "is not a run directory")):
        with pytest.raises(UserError, match=words):
            collect([tmp_path / name])


def test_a_report_on_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="There is nothing to report on"):
        collect([])


def test_effective_peers_are_a_sentence_and_a_dominating_peer_a_warning(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", rounds=2)
    assert only(path)["peers"] == ""  # an older run does not record them
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line["effective_peers"] = None if line["round"] == 1 else (1.0, 2.0, 2.5, 3.0)[line["client"]]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = only(path)["peers"]
    assert "1.0 to 3.0 in round 2, fewest 1.0 for client 1 in round 2." in text
    assert text.endswith("min_peers prevents that.")
    for line in lines:
        line["effective_peers"] = 0.0
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert only(path)["peers"] == "No client received tensors of another client."


def test_the_privacy_budget_that_was_spent_is_a_sentence(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", rounds=2)
    assert only(path)["privacy"] == ""
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line["epsilon"] = 0.5 * line["round"] + line["client"]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = (path / "config.toml").read_text().replace("privacy_epsilon = 0.0", "privacy_epsilon = 8.0")
    (path / "config.toml").write_text(config)
    assert "clients spent epsilon 1.00 to 4.00 of 8, with delta 1e-05." in only(path)["privacy"]
