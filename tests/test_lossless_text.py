"""The losslessness line: what was tested with n and power, what failed and where, what was not tested."""

from __future__ import annotations

import dataclasses

from tuner.measure.lossless import BROKEN_FLOOR, Structured, Verified
from tuner.measure.lossless_greedy import Divergence, GreedyResult
from tuner.measure.lossless_levels import levels
from tuner.measure.lossless_sampled import LOOKS, PromptTest, SampledResult
from tuner.report.lossless_table import lossless_table
from tuner.report.lossless_text import details, line, study_line, summary, verdict
from tuner.run.verify import Verification
from tuner.spec.speculation import OFF, SpecConfig

TIE = Divergence("chat/1", 12, 5, 6, 0.03)
WRONG = Divergence("chat/2", 30, 5, 6, 7.25, at_least=True)
GREEDY = GreedyResult(8, 256, (TIE,), 8, (), 0.5, 0.5)
SAMPLED = SampledResult(
    1.0, 5, (PromptTest("colours, plain", 4000, 4000, 6.0, 6, 0.42, 0.02),), 3, 4, levels(LOOKS)[3], levels(LOOKS)[3],
    0.42, 0.42, 0.6,
)  # fmt: skip
SOUND = Verified("eagle3 N=3", GREEDY, (SAMPLED,), (SAMPLED,), drafted=900)
EAGLE3, NGRAM = SpecConfig("eagle3", n=3, draft="/d"), SpecConfig("ngram", n=4)


def test_a_sound_setting() -> None:
    assert verdict(SOUND) == "lossless, as far as tested"
    told = "; ".join(details(SOUND))
    assert "1 of 8 answers (256 tokens) part from off's, 0 of 8 of off's from its own at another concurrency" in told
    assert line(SOUND) == (
        "eagle3 N=3 lossless, as far as tested (temperature 0: 1 of 8 answers (256 tokens) part from off's, all of "
        "them ties (gaps up to 0.03 nats; p = 0.5); temperature 1: 4000 samples against 4000, p = 1, a shift of 0.05 "
        f"in total variation would have been caught with probability {SAMPLED.power():.2g}, one of "
        f"{SAMPLED.caught:.2g} with 0.9)"
    )
    assert "all of them ties (gaps up to 0.03 nats; p = 0.5)" in told
    assert "4000 samples of 5 tokens against 4000 of off over 1 prompts, p = 1" in told
    # noncentrality 4 * 0.05^2 * 2000 = 20, six degrees, a third of the last look's level of about 0.0097.
    assert (
        f"would have been caught with probability {SAMPLED.power():.2g}, one of {SAMPLED.caught:.2g} with 0.9" in told
    )
    assert 0.5 < SAMPLED.power() < 0.9
    assert "900 verify steps drafted meanwhile" in told


def test_a_fault_comes_first_with_place_and_size() -> None:
    faulty = dataclasses.replace(SOUND, greedy=dataclasses.replace(GREEDY, divergences=(TIE, WRONG)))
    assert verdict(faulty) == (
        "NOT LOSSLESS: 2 of 8 greedy answers part from the target's, at token 31 of 'chat/2' by one that the target "
        "holds for over 7.25 nats less likely, and a gap above 0.5 nats is no rounding; off parts from itself in 0 of 8"
    )
    assert "1 by more than a tie of 0.5 nats" in line(faulty)


def test_labels_count_as_much_as_tests() -> None:
    known = dataclasses.replace(SOUND, labels=((1.0, "verified by argmax"),), sampled=())
    assert verdict(known) == "NOT LOSSLESS: by its configuration, at temperature 1: verified by argmax"


def test_nothing_drafted_proves_nothing() -> None:
    idle = Verified("ngram N=4", sampled=(SAMPLED,), drafted=0)
    assert verdict(idle) == "not tested: nothing was drafted on these requests"
    greedily = Verified("ngram N=4", GREEDY, drafted=0, drafted_greedily=0)
    assert verdict(greedily) == "not tested: nothing was drafted on these requests"
    assert "p = 0.5); but nothing was drafted meanwhile, so it proves nothing" in line(greedily)
    # It drafted greedily and not on the samples: the one is a test, the other claims no power.
    half = dataclasses.replace(SOUND, drafted=0, drafted_greedily=40)
    assert verdict(half) == "lossless, as far as tested"
    assert "would have been caught with probability" not in line(half)
    assert line(half).count("but nothing was drafted meanwhile, so it proves nothing") == 1


def test_a_void_control_is_said() -> None:
    bad = dataclasses.replace(SAMPLED, p_all=1e-12)
    void = dataclasses.replace(SOUND, sampled=(bad,), controls=(bad,))
    assert void.ok
    assert "but off fails this test against itself, so it is void" in line(void)
    assert verdict(dataclasses.replace(void, greedy=None)) == "not tested"


RESTLESS = dataclasses.replace(
    SOUND, greedy=GreedyResult(32, 1024, (TIE,) * 32, 32, (), 0.5, 5.5e-19, 0.005), drafted_greedily=400
)
OFTEN = (
    "32 of 32 greedy answers part from the target's, off parts from itself in 0 of 32 (p = 5e-19): each at a near-tie, "
    "which is no fault, but more often than rounding makes off do it"
)


def test_ties_more_often_than_offs_own_are_told_wherever_the_verdict_is() -> None:
    assert RESTLESS.ok
    assert RESTLESS.passed
    assert verdict(RESTLESS) == f"lossless, as far as tested; {OFTEN}"
    often = "all of them ties (gaps up to 0.03 nats; p = 5.5e-19), but more often than off's own"
    assert often in line(RESTLESS)
    assert often in "; ".join(details(RESTLESS))
    assert lossless_table({EAGLE3: RESTLESS}).rows[0][3].endswith(often)
    assert summary({EAGLE3: RESTLESS}, "w.yaml") == f"eagle3 N=3 lossless, as far as tested; {OFTEN}"
    assert OFTEN in str(study_line({EAGLE3: RESTLESS}, (EAGLE3,)))
    (told,) = Verification((RESTLESS,), "m", "mock", (0.0, 1.0)).to_dict()["settings"]
    assert (told["ok"], told["cautions"]) == (True, [OFTEN])
    assert list(SOUND.cautions()) == []


def test_off_that_strays_from_itself_makes_the_greedy_test_void_wherever_it_is_told() -> None:
    """As a failed control of samples does: no fault, and no test."""
    stray = dataclasses.replace(GREEDY, divergences=(TIE, WRONG), floor=(dataclasses.replace(TIE, gap=3.0),))
    void = dataclasses.replace(SOUND, greedy=stray)
    assert void.ok
    assert void.tested  # by its samples
    assert verdict(void) == f"lossless, as far as tested; {BROKEN_FLOOR}"
    assert f"; {BROKEN_FLOOR}" in line(void)
    assert lossless_table({EAGLE3: void}).rows[0][3] == f"void: {BROKEN_FLOOR}"
    assert summary({EAGLE3: void}, "w.yaml") == f"eagle3 N=3 lossless, as far as tested; {BROKEN_FLOOR}"
    greedily = dataclasses.replace(void, sampled=(), controls=())
    assert not greedily.tested
    assert verdict(greedily) == f"not tested; {BROKEN_FLOOR}"
    (told,) = Verification((greedily,), "m", "mock", (0.0,)).to_dict()["settings"]
    assert told["cautions"] == [BROKEN_FLOOR]


def test_answers_bound_to_a_grammar() -> None:
    broken = dataclasses.replace(SOUND, structured=Structured(6, 2, 6, "'json/1': it is no JSON"))
    assert verdict(broken).startswith("NOT LOSSLESS: unsafe for this workload: 2 of 6 answers bound to a grammar ended")
    assert broken.fault(0.0) == broken.fault(1.0)


def test_a_server_that_died_at_one_temperature() -> None:
    died = dataclasses.replace(SOUND, unsafe="it died", unsafe_at=1.0)
    assert died.fault(0.0) is None
    assert died.fault(0.7) == "unsafe for this workload: it died"


def test_the_line_of_a_study() -> None:
    wrong = Verified("ngram N=4", unsafe="it died", unsafe_at=0.0)
    assert study_line({}, (EAGLE3, OFF)) is None
    both = str(study_line({EAGLE3: SOUND, NGRAM: wrong}, (EAGLE3, OFF)))
    assert both.startswith("eagle3 N=3 lossless, as far as tested (temperature 0: ")
    assert both.endswith("; ngram N=4 NOT LOSSLESS: unsafe for this workload: it died")
    assert str(study_line({NGRAM: wrong}, (EAGLE3,))).startswith("eagle3 N=3: not tested; ngram N=4 NOT LOSSLESS")
    assert str(study_line({EAGLE3: SOUND}, (OFF,))).startswith("eagle3 N=3 lossless, as far as tested")
    # Where off is the advice, every setting that was tested has its n and power.
    other = dataclasses.replace(SOUND, setting="ngram N=4")
    assert str(study_line({EAGLE3: SOUND, NGRAM: other}, (OFF,))) == f"{line(SOUND)}; {line(other)}"


#: 200 samples against 200, six degrees: noncentrality 4 * 0.05^2 * 100 = 1, next to nothing; 4 * 0.5^2 * 100 = 100.
FEW = dataclasses.replace(SAMPLED, tests=(dataclasses.replace(SAMPLED.tests[0], first=200, second=200),))
#: 23 against 25: 48 shift^2 is 12 at a shift of 0.5, where a level of 0.003 asks for about 27.
TOO_FEW = dataclasses.replace(SAMPLED, tests=(dataclasses.replace(SAMPLED.tests[0], first=23, second=25),))


def test_people_are_told_how_large_a_shift_could_pass_unseen() -> None:
    assert summary({EAGLE3: SOUND}, "w.yaml") == "no difference found in eagle3 N=3"  # 0.05 is more likely seen
    weak = dataclasses.replace(SOUND, sampled=(FEW,))
    assert FEW.power() < 0.01
    assert FEW.caught is not None
    told = summary({EAGLE3: SOUND, NGRAM: weak}, "w.yaml")
    assert told == (
        f"no difference found in eagle3 N=3 and ngram N=4; at temperature 1 only shifts above {FEW.caught:.2f} would "
        "show: run `tuner verify w.yaml` before turning it on"
    )
    died = Verified("ngram N=4", unsafe="it died", unsafe_at=1.0)
    assert str(summary({NGRAM: died}, "w.yaml")) == "ngram N=4 NOT LOSSLESS: unsafe for this workload: it died"
    assert summary({}, "w.yaml") is None


def test_a_temperature_with_too_few_samples_to_tell_counts_as_not_tested() -> None:
    """Not even half of the probability moved elsewhere would have been seen 9 times of 10."""
    assert TOO_FEW.caught is None or TOO_FEW.caught > 0.5
    assert FEW.caught is not None
    assert FEW.caught < 0.5
    greedily = dataclasses.replace(SOUND, sampled=(TOO_FEW,))
    thin = "temperature 1 not tested (too few samples to tell: n = 25 against 23)"
    assert verdict(greedily) == f"lossless, as far as tested; {thin}"
    assert summary({EAGLE3: greedily}, "w.yaml") == (
        f"no difference found in eagle3 N=3; {thin}: run `tuner verify w.yaml` before turning it on"
    )
    assert "temperature 1: 25 samples against 23, p = 1, too few samples to tell: n = 25 against 23, which" in line(
        greedily
    )
    assert "would have been caught" not in line(greedily)
    only = dataclasses.replace(greedily, greedy=None)
    assert not only.tested
    assert only.passed
    assert verdict(only) == "not tested: too few samples to tell: n = 25 against 23"
    assert summary({EAGLE3: only}, "w.yaml") == (
        f"eagle3 N=3 not tested; {thin}: run `tuner verify w.yaml` before turning it on"
    )
    assert lossless_table({EAGLE3: only}).rows[0][3] == (
        "not tested, too few samples to tell: n = 25 against 23 (p = 1)"
    )
    # Enough samples for half, and a difference that was found all the same, are tests.
    assert dataclasses.replace(only, sampled=(FEW,)).tested
    assert verdict(
        dataclasses.replace(only, sampled=(dataclasses.replace(TOO_FEW, p_all=1e-9),), controls=())
    ).startswith("NOT LOSSLESS: at temperature 1")


def test_the_table_has_n_and_power_of_every_temperature() -> None:
    void = dataclasses.replace(SOUND, sampled=(SAMPLED,), controls=(dataclasses.replace(SAMPLED, p_all=1e-12),))
    labelled = dataclasses.replace(SOUND, sampled=(), labels=((1.0, "verified by argmax"),))
    greedy = (
        "8 answers; off against itself: 0 of 8 part",
        "1 of 8 answers (256 tokens) part from off's, all of them ties (gaps up to 0.03 nats; p = 0.5)",
    )
    samples = "4000 samples against 4000 of off, 1 prompts"
    power, caught = f"{SAMPLED.power():.2f}", f"{SAMPLED.caught:.2f}"
    assert lossless_table({EAGLE3: SOUND}).rows == (
        ("eagle3 N=3", "0", *greedy, "", ""),
        ("eagle3 N=3", "1", samples, "no difference found (p = 1)", caught, power),
    )
    assert lossless_table({NGRAM: void}).rows[1][3:] == ("void: off fails this test against itself (p = 1)", "", "")
    assert lossless_table({NGRAM: labelled}).rows[1][1:4] == ("1", "its configuration", "DIFFERS: verified by argmax")
    weak = lossless_table({EAGLE3: dataclasses.replace(SOUND, sampled=(FEW,))}).rows[1]
    assert weak[4:] == (f"{FEW.caught:.2f}", "under 0.01")
    idle = lossless_table({NGRAM: dataclasses.replace(SOUND, drafted=0)}).rows[1]
    assert idle[3:] == ("nothing was drafted: proves nothing", "", "")
