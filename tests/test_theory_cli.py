"""`tuner theory` from the outside: contracts of the JSON, CSV, PNG, one sentence for bad input, light start-up."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.cli import main

PNG = b"\x89PNG\r\n\x1a\n"


class Run:
    """Runs the command in this process as a shell would, and keeps what it printed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, words: str) -> tuple[int, str, str]:
        self.monkeypatch.setattr(sys, "argv", ["tuner", "theory", *words.split()])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = self.capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    def json(self, words: str) -> dict:
        code, out, _ = self(f"{words} --json")
        assert code == 0
        return json.loads(out)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(monkeypatch, capsys)


def test_verify_contract(run: Run) -> None:
    data = run.json("verify --steps 20000 --seed 1")
    assert data["passed"] is True
    assert 0.05 < data["p_value"] < 1.0
    assert data["chi2"] < data["critical_95"]
    assert data["df"] > 50
    assert [sorted(variant)[:3] for variant in data["broken_variants"]] == [
        ["first_token_p_value", "name", "p_value"]
    ] * 5
    assert all(variant["rejected"] is True and variant["p_value"] < 1e-6 for variant in data["broken_variants"])
    assert (data["steps"], data["seed"]) == (20000, 1)


def test_verify_says_what_it_tested(run: Run) -> None:
    code, out, _ = run("verify --steps 20000")
    assert code == 0
    for part in ("critical value at 95 %", "df ", "against the exact q", "against 20000 direct samples", "passed"):
        assert part in out
    assert out.count(" yes ") == 5


def test_verify_that_does_not_pass_ends_with_1(run: Run) -> None:
    # 40 steps cannot tell the mildest broken loop from a right one: the check is then worth nothing and says so.
    code, out, err = run("verify --steps 40")
    assert code == 1
    assert "FAILED" in out
    assert err.startswith("tuner: the check did not pass")


def test_speedup_contract(run: Run) -> None:
    data = run.json("speedup --alpha 0.8 --cost 0.05")
    assert data["best_n"] == 8
    assert round(data["speedup"], 4) == 3.0921
    assert [point["n"] for point in data["curve"]] == list(range(1, 11))
    assert set(data["curve"][0]) == {"n", "tokens_per_call", "relative_time", "speedup"}
    # N = 1: E = 1.8, time 1.05 / 1.8
    assert data["curve"][0]["tokens_per_call"] == pytest.approx(1.8)
    assert data["curve"][0]["relative_time"] == pytest.approx(1.05 / 1.8)
    assert data["curve"][7]["speedup"] == pytest.approx(data["speedup"])
    assert data["break_even_alpha"][0] == {"n": 1, "alpha": pytest.approx(0.05)}


def test_a_short_curve_does_not_cap_the_optimum(run: Run) -> None:
    data = run.json("speedup --alpha 0.95 --cost 0.02 --n-max 4")
    assert len(data["curve"]) == 4
    assert data["best_n"] == 31
    assert round(data["speedup"], 4) == 9.9542


def test_speedup_explains_its_curve(run: Run) -> None:
    _, out, _ = run("speedup --alpha 0.9 --cost 0.04")
    assert "Best N = 15 of all N: 5.0919x." in out
    # .9^11 * 1.4 = .43935; .04 * 6.86189 = .27448
    assert "Beyond N = 10 the curve still gains: token 11 is worth alpha^(N+1) (1 + N c) = 0.4393" in out
    assert "costs c E(N) = 0.2745" in out


def test_speedup_at_the_limits(run: Run) -> None:
    data = run.json("speedup --alpha 1 --cost 0.05 --n-max 3")
    assert data["best_n"] is None
    assert data["speedup"] == pytest.approx(20.0)
    assert [point["tokens_per_call"] for point in data["curve"]] == [2.0, 3.0, 4.0]
    assert run.json("speedup --alpha 1 --cost 0")["speedup"] is None
    assert "leave speculation off" in run("speedup --alpha 0.1 --cost 0.3")[1]


def test_tree_contract(run: Run) -> None:
    data = run.json("tree --branching 2,2,2 --steps 2000")
    assert data["chain_equal_calls"] == pytest.approx(2.952)
    assert data["chain_equal_nodes"] == pytest.approx((1 - 0.8**15) / 0.2)
    assert data["chain_equal_calls"] < data["tokens_per_call"] < 4.0
    assert len(data["alpha_per_leaf"]) == 8
    assert data["positions"] == [0, 1, 1, 2, 2, 2, 2, *[3] * 8]
    assert [sum(row) for row in data["attention_mask"]] == [depth + 1 for depth in data["positions"]]


def test_a_large_tree_is_shown_in_part(run: Run) -> None:
    words = "tree --branching 3,3,3,3,3 --top-k --steps 500"
    _, out, _ = run(words)
    # 3^5 = 243 leaves
    assert "and 227 more, all in --json" in out
    data = run.json(words)
    assert len(data["alpha_per_leaf"]) == 243
    assert data["attention_mask"] is None


def test_load_says_where_its_list_ends(run: Run) -> None:
    _, out, _ = run("load --cost 0.04 --alphas 0.9 --ridge 295 --batches 1,512 --n-max 10")
    assert "At batch 1 the best N is the last one given: raise --n-max." in out
    assert "in passes over the target's weights" in out


def test_kv_contract(run: Run) -> None:
    data = run.json("kv --n 5 --accepted 5,2 --prefix 10")
    a, b = data["sequences"]
    for policy in ("scratch_commit", "truncate"):
        assert {key: a[policy][key] for key in ("kv_length", "written", "wasted")} == {
            "kv_length": 16,
            "written": 6,
            "wasted": 0,
        }
        assert {key: b[policy][key] for key in ("kv_length", "written", "wasted")} == {
            "kv_length": 13,
            "written": 6,
            "wasted": 3,
        }
    assert data["same_text"] is True


def test_the_other_commands_answer(run: Run) -> None:
    assert run.json("grid --alphas 0.5,0.8 --n-max 2")["tokens_per_call"] == [
        pytest.approx([1.5, 1.75]),
        pytest.approx([1.8, 2.44]),
    ]
    points = run.json("alpha --levels 0,2 --steps 4000")["points"]
    assert points[0]["alpha"] == 1.0
    assert points[1]["alpha"] == pytest.approx(points[1]["one_minus_tv"], abs=0.03)
    points = run.json("load --cost 0.05 --alphas 0.8 --ridge 295 --batches 1,128")["points"]
    assert [point["best_n"] for point in points] == [8, 2]
    steps = run.json("step --n 4 --steps 6")["steps"]
    assert len(steps) == 6
    assert all(len(step["drafted"]) == 4 and len(step["emitted"]) == step["accepted"] + 1 for step in steps)


CSV_HEADERS = {
    "verify --steps 2000": "loop,rejected,chi2,p_value,p_first_token,power,steps_for_95_percent_power",
    "step": "context,drafted,accepted,emitted,closed_by",
    "speedup --alpha 0.9 --cost 0.04": "n,tokens_per_call,relative_time,speedup,break_even_alpha",
    "grid": "n,alpha 0.5,alpha 0.6,alpha 0.7,alpha 0.8,alpha 0.9,alpha 0.95",
    "alpha --steps 2000": "level,one_minus_tv,alpha,standard_error,accepted_over_drafted",
    "load --cost 0.05 --alphas 0.8 --ridge 295": "batch,best_n,tokens_per_call,step_time,plain_time,speedup",
    "tree --steps 2000": "draft,nodes,draft_calls,tokens_per_call",
    "kv": "sequence,policy,accepted,kv_length,written,wasted,copied,blocks_held,blocks_at_peak",
}


@pytest.mark.parametrize("words", list(CSV_HEADERS))
def test_csv(run: Run, words: str) -> None:
    code, out, _ = run(f"{words} --csv")
    assert code == 0
    header, *rows = csv.reader(io.StringIO(out))
    assert ",".join(header) == CSV_HEADERS[words]
    assert len(rows) >= 4
    assert {len(row) for row in rows} == {len(header)}


@pytest.mark.parametrize("words", [words for words in CSV_HEADERS if words != "step"])
def test_plots(run: Run, tmp_path: Path, words: str) -> None:
    target = tmp_path / "drawing.png"
    code, _, err = run(f"{words} --plot {target}")
    assert (code, err) == (0, "")
    content = target.read_bytes()
    assert content.startswith(PNG)
    assert len(content) > 5000
    # Written through a temporary file that is gone.
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("speedup --alpha 1.2 --cost 0.05", "alpha lies outside [0, 1]"),
        ("speedup --alpha -0.1 --cost 0.05", "alpha lies outside [0, 1]"),
        ("speedup --alpha nan --cost 0.05", "alpha lies outside [0, 1]"),
        ("speedup --alpha 0.8 --cost -1", "cost is below 0"),
        ("speedup --alpha 0.8 --cost 0.05 --n-max 0", "n-max is 0"),
        ("verify --steps 0", "steps is 0"),
        ("verify --steps 100000000", "give 1 to 10000000"),
        ("verify --n 0", "n is 0"),
        ("verify --steps 3", "too few samples"),
        ("step --n 0", "n is 0"),
        ("step --steps 0", "steps is 0"),
        ("grid --alphas 0.5,x", "no list of numbers"),
        ("grid --alphas 0.5,2", "alpha lies outside [0, 1]"),
        ("alpha --levels -1", "levels must be numbers from 0 on"),
        ("alpha --n 0", "n is 0"),
        ("load --alphas 2 --cost 0.1 --ridge 295", "alpha lies outside [0, 1]"),
        ("load --alphas 0.8 --cost 0.1 --ridge 0", "ridge is 0"),
        ("load --alphas 0.8 --cost 0.1 --ridge 295 --batches 0", "batch is 0"),
        ("load --alphas 0.8 --cost 0.1 --ridge 295 --batches 1,b", "no list of whole numbers"),
        ("tree --branching 2,0,2", "at least 1 child at every depth"),
        ("tree --branching 2,two", "no list of whole numbers"),
        ("tree --branching 9", "9 different children over a vocabulary of 8"),
        ("tree --alpha 0", "alpha is 0"),
        ("tree --vocab 1", "a vocabulary of 1"),
        ("tree --vocab 5000", "too large to be exact"),
        ("kv --n 0", "n is 0"),
        ("kv --n 5 --accepted 6", "accepted 6 is not between 0 and 5"),
        ("kv --accepted 5,", "no list of whole numbers"),
        ("kv --block-size 0", "at least 1 block"),
        ("kv --prefix 10000000", "begins with 0 to 100000 entries"),
        ("kv --n 5000", "over 4096 nodes"),
        ("kv --json --csv", "give one of them"),
        ("kv --plot /absent/kv.png", "the directory /absent does not exist"),
        ("kv --plot kv.pdf", "ends in .png"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(run: Run, words: str, sentence: str) -> None:
    code, out, err = run(words)
    assert code == 2
    assert out == ""
    assert err.startswith("tuner: ")
    assert err.count("\n") == 1
    assert sentence in err


def test_a_plot_onto_a_directory_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "taken.png").mkdir()
    code, _, err = run(f"kv --plot {tmp_path / 'taken.png'}")
    assert code == 2
    assert "is a directory" in err


def test_a_plot_that_cannot_be_written_is_one_sentence(run: Run, tmp_path: Path) -> None:
    code, out, err = run(f"kv --plot {tmp_path / ('k' * 300)}.png")
    assert code == 2
    assert "Both policies leave the same text visible." in out  # the answer is not lost with its drawing
    assert err.startswith("tuner: cannot write ")
    assert "File name too long" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", ["verify", "step", "speedup", "grid", "alpha", "load", "tree", "kv"])
def test_help_shows_an_example(run: Run, name: str) -> None:
    code, out, _ = run(f"{name} --help")
    assert code == 0
    assert f"tuner theory {name}" in out.split("Options:")[0].split("\n", 1)[1]


def imported_by(code: str) -> set[str]:
    """Top-level and dotted module names loaded after `code` ran in a fresh interpreter."""
    script = f"import sys\n{code}\nprint('\\n'.join(sys.modules), file=sys.stderr)"
    ended = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return set(ended.stderr.split())


def test_the_command_line_starts_without_heavy_imports() -> None:
    loaded = imported_by("import tuner.cli.theory")
    assert not loaded & {"numpy", "scipy", "matplotlib", "tuner.theory.rule", "tuner.report.theory_plots"}


def test_verify_imports_no_more_than_it_needs() -> None:
    loaded = imported_by("from tuner.theory.verify import verify\nverify(2000)")
    assert "scipy.special" in loaded
    assert not loaded & {"scipy.stats", "scipy.optimize", "matplotlib", "pandas", "rich"}
