"""Methods beside ngram and eagle3, launched for real on the CPU build with tiny cells; the rest: test_vllm_parser."""

from __future__ import annotations

from pathlib import Path

import pytest
from heads import eagle1_head, medusa_heads
from real_vllm import Traffic, launch, target

from tuner.measure.acceptance import AcceptanceCounts, cell_counts
from tuner.measure.records import Cell
from tuner.measure.validity import check_cell
from tuner.spec.speculation import SpecConfig

pytestmark = [pytest.mark.real_vllm, pytest.mark.timeout(2400)]


@pytest.fixture
def drafts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose path holds none of the words from which vLLM guesses a method."""
    return tmp_path_factory.mktemp("drafts")


def test_a_target_that_drafts_for_itself_has_nearly_everything_accepted(drafts: Path) -> None:
    twin = drafts / "twin"
    twin.symlink_to(target())
    spec = SpecConfig("draft_model", n=3, draft=str(twin))
    ran = launch(spec, drafts / "engine.log", Traffic())
    assert "SpeculativeConfig(method='draft_model'" in ran.log
    counts = counted(ran.cells[0.0], spec)
    # Equal weights, greedy: a draft is rejected only where two logits are so close that batch shapes decide.
    assert counts.drafting_steps >= 20
    assert 3.8 < counts.tau <= 4
    assert "everything-accepted" in rules(ran.cells[0.0], spec)


def test_a_random_eagle_head_is_accepted_as_a_command_and_found_not_to_work(drafts: Path) -> None:
    spec = SpecConfig("eagle", n=2, draft=str(eagle1_head(drafts / "head", target())))
    ran = launch(spec, drafts / "engine.log", Traffic(concurrency=4, requests=12))
    assert "SpeculativeConfig(method='eagle'" in ran.log
    cell = ran.cells[0.0]
    counts = counted(cell, spec)
    # 12 requests of 24 tokens, one a step: 12 * 23 = 276 steps where nothing is accepted.
    assert counts.drafting_steps >= 200
    assert counts.drafted is not None
    assert counts.drafted > counts.drafting_steps
    assert 1 <= counts.tau <= 1.02
    assert "draft-not-working" in rules(cell, spec)


def test_random_medusa_heads(drafts: Path) -> None:
    spec = SpecConfig("medusa", n=2, draft=str(medusa_heads(drafts / "heads", target(), heads=2)))
    ran = launch(spec, drafts / "engine.log", Traffic())
    assert "SpeculativeConfig(method='medusa'" in ran.log
    counts = counted(ran.cells[0.0], spec)
    assert counts.drafting_steps > 0
    assert 1 <= counts.tau < 1.1


def counted(cell: Cell, spec: SpecConfig) -> AcceptanceCounts:
    """Acceptance from the records, after the engine's counters were found to say the same of all requests."""
    assert len(cell.completed) == len(cell.measured), [r.error for r in cell.measured]
    assert [r for r in rules(cell, spec) if r.startswith("counters")] == []
    counts = cell_counts(cell.completed, spec.n)
    assert counts is not None
    assert counts.tau is not None
    return counts


def rules(cell: Cell, spec: SpecConfig) -> list[str]:
    return [finding.rule for finding in check_cell(cell, spec)]
