"""Prompt sets: the vendored texts, every file format that is read, the error sentences, and the mixing order."""

import json
import math
import re
from collections import Counter
from fractions import Fraction
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.errors import UserError
from tuner.prompts import Prompt, interleave, load_set, vendored_sets

DATA = Path(__file__).parent / "data" / "prompts"
ENGLISH = ("chat", "code", "creative", "json", "long_form", "maths", "rewrite")


def write(folder: Path, text: str | bytes, name: str = "mine.jsonl") -> str:
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return name


def sentence(name: str, base: Path) -> str:
    with pytest.raises(UserError) as caught:
        load_set(name, base)
    return str(caught.value)


# The vendored sets


def test_the_names_of_the_vendored_sets():
    assert vendored_sets() == (
        "chat",
        "chinese",
        "code",
        "creative",
        "json",
        "long_form",
        "maths",
        "multilingual",
        "persian",
        "rewrite",
    )


@pytest.mark.parametrize("name", vendored_sets())
def test_a_vendored_set_has_about_thirty_distinct_prompts(name):
    prompts = load_set(name)
    assert 30 <= len(prompts) <= 40
    assert [p.id for p in prompts] == [f"{name}/{n}" for n in range(1, len(prompts) + 1)]
    assert {p.task for p in prompts} == {name}
    assert len({p.messages for p in prompts}) == len(prompts)
    # Temperature belongs to the workload; a row's own would hide it.
    assert all(p.sampling == () and p.max_tokens is None for p in prompts)
    assert all(len(p.messages) == 1 and p.messages[0][0] == "user" for p in prompts)


def test_no_text_is_in_two_sets():
    texts = [p.messages for name in vendored_sets() for p in load_set(name)]
    assert len(set(texts)) == len(texts) == 9 * 30 + 38


@pytest.mark.parametrize("name", vendored_sets())
def test_vendored_prompts_fit_a_small_context(name):
    """Characters, as a stand-in for tokens: a token is about 4 in English and, measured, at least 1 elsewhere."""
    limit = {"persian": 600, "chinese": 400, "multilingual": 700}.get(name, 1500)
    assert max(len(p.messages[0][1]) for p in load_set(name)) <= limit


@pytest.mark.parametrize("name", ENGLISH)
def test_english_sets_say_so(name):
    assert {p.language for p in load_set(name)} == {"en"}


def letters_between(text: str, low: str, high: str) -> int:
    return sum(low <= c <= high for c in text)


def test_persian_is_written_with_persian_letters():
    for prompt in load_set("persian"):
        text = prompt.messages[0][1].replace("«ي» و «ك» عربی", "")  # the one prompt that is about these letters
        assert prompt.language == "fa"
        assert letters_between(text, "\u0600", "\u06ff") > 40, prompt.id
        assert not set("يكة") & set(text), prompt.id


def test_chinese_is_chinese_with_full_width_punctuation():
    for prompt in load_set("chinese"):
        text = prompt.messages[0][1]
        assert prompt.language == "zh"
        assert letters_between(text, "\u4e00", "\u9fff") > 20, prompt.id
        assert not re.search("[\u4e00-\u9fff][,:;?!]", text), prompt.id


def test_multilingual_has_eleven_languages():
    languages = Counter(p.language for p in load_set("multilingual"))
    four = dict.fromkeys(("de", "es", "fr", "ar", "hi", "ja", "ru", "tr"), 4)
    assert languages == four | dict.fromkeys(("pt", "it", "ko"), 2)  # 8 * 4 + 3 * 2 = 38


def test_each_rewrite_prompt_brings_the_text_to_be_copied():
    for prompt in load_set("rewrite"):
        _, _, given_text = prompt.messages[0][1].partition("\n\n")
        words, lines = len(given_text.split()), len([x for x in given_text.splitlines() if x.strip()])
        assert 80 <= words <= 250 or 15 <= lines <= 42, prompt.id


def test_second_turns_of_a_vendored_set_are_kept_when_asked_for():
    assert all(p.further_turns == () for p in load_set("chat"))
    assert sum(len(p.further_turns) for p in load_set("chat", all_turns=True)) == 4


def test_vendored_rows_use_only_the_documented_keys():
    for name in vendored_sets():
        for line in (files("tuner.prompts") / f"{name}.jsonl").read_text("utf-8").splitlines():
            assert list(json.loads(line)) == ["id", "task", "language", "turns"]


# Formats


def test_own_format_with_turns_and_messages():
    assert load_set("own.jsonl", DATA) == (
        Prompt("greet", "chat", "en", (("user", "Say hello to the new gardener."),)),
        # line 3, since line 2 is blank; no id, task or language given
        Prompt(
            "own/3",
            "own",
            None,
            (("user", "Name three herbs."),),
            max_tokens=64,
            sampling=(("temperature", 0.2), ("top_p", 0.9)),
        ),
        Prompt("own/7", "chat", None, (("system", "Be brief."), ("user", "What is loam?"))),
    )


def test_spec_bench_rows_first_turn_only_unless_asked():
    first, second = load_set("spec_bench.jsonl", DATA)
    assert first == Prompt("spec_bench/81", "writing", None, (("user", "Describe a harbour at dawn."),))
    assert (second.id, second.task) == ("spec_bench/82", "translation")
    replay = load_set("spec_bench.jsonl", DATA, all_turns=True)
    assert [p.further_turns for p in replay] == [("Now only in questions.",), ()]
    assert replay[0].messages == first.messages


def test_openai_messages_end_with_the_users_last_turn_and_join_text_parts():
    (prompt,) = load_set("openai_messages.jsonl", DATA)
    assert prompt.id == "openai_messages/1"
    assert prompt.messages == (
        ("system", "You sell boats."),
        ("user", "Have you a dinghy?"),
        ("assistant", "Two."),
        ("user", "How long are they?"),
    )


@pytest.mark.parametrize(
    "entry",
    [
        {"role": "user", "content": "Have you a dinghy?"},
        {"from": "human", "value": "Have you a dinghy?"},
    ],
)
def test_conversations_as_trainers_take_them_are_messages(tmp_path: Path, entry: dict[str, str]):
    answer = {"from": "gpt", "value": "Two."}
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"id": "a", "conversations": [entry, answer]}), encoding="utf-8")
    (prompt,) = load_set(str(path))
    assert (prompt.id, prompt.messages) == ("a", (("user", "Have you a dinghy?"),))


def test_openai_batch_requests_keep_what_shapes_the_answer():
    first, second = load_set("openai_batch.jsonl", DATA)
    assert first.id == "req-a"
    assert first.messages == (("user", "Count the sails."),)
    assert first.max_tokens == 32
    assert first.sampling == (
        ("response_format", {"type": "json_object"}),
        ("stop", ["\n\n"]),
        ("temperature", 0.5),
    )
    assert (second.max_tokens, second.sampling) == (16, ())
    assert len({first, second}) == 2  # hashable, although a response format is an object


def test_humaneval_rows_become_the_instruction_and_the_code():
    (prompt,) = load_set("humaneval.jsonl", DATA)
    assert (prompt.id, prompt.task) == ("HumanEval/900", "code")
    assert prompt.messages == (
        ("user", 'Complete the code I provided.\n\ndef double(x: int) -> int:\n    """Return twice x."""\n'),
    )


def test_gsm8k_rows_send_the_question_and_never_the_answer():
    first, second = load_set("gsm8k.jsonl", DATA)
    assert first == Prompt(
        "gsm8k/1", "maths", None, (("user", "A crate holds 12 jars. How many jars are in 5 crates?"),)
    )
    assert second.id == "gsm8k/2"
    assert "60" not in first.messages[0][1]


def test_plain_prompt_rows_and_numbered_tasks_are_sent_as_they_are(tmp_path):
    name = write(tmp_path, '{"prompt": "Hum."}\n{"task_id": 3, "prompt": "Write a function."}\n')
    assert [(p.id, p.task, p.messages[0][1]) for p in load_set(name, tmp_path)] == [
        ("mine/1", "mine", "Hum."),
        ("mine/3", "mine", "Write a function."),
    ]


def test_line_separators_inside_strings_bom_and_crlf(tmp_path):
    name = write(tmp_path, '\ufeff{"prompt": "a\u2028b"}\r\n{"prompt": "c\x85d"}\r\n')
    assert [p.messages[0][1] for p in load_set(name, tmp_path)] == ["a\u2028b", "c\x85d"]


# Finding a set


def test_a_path_is_relative_to_base_or_absolute_or_without_suffix(tmp_path, monkeypatch):
    name = write(tmp_path, '{"prompt": "x"}')
    monkeypatch.chdir(tmp_path)
    expected = load_set(name, tmp_path)
    assert load_set(str(tmp_path / name), Path("/")) == load_set(name) == load_set(f"./{name}") == expected
    write(tmp_path, '{"prompt": "x"}', "nosuffix")
    assert load_set("nosuffix", tmp_path)[0].id == "nosuffix/1"


def test_a_vendored_name_wins_over_a_file_and_a_path_over_the_name(tmp_path):
    write(tmp_path, '{"prompt": "local"}', "chat")
    assert len(load_set("chat", tmp_path)) == 30
    assert load_set("./chat", tmp_path)[0].messages == (("user", "local"),)


def test_unknown_set_names_the_nearest_and_all(tmp_path):
    text = sentence("creativ", tmp_path)
    assert text.startswith("there is no prompt set 'creativ' (did you mean 'creative'?); the sets are chat, ")
    assert all(name in text for name in vendored_sets())
    assert "did you mean" not in sentence("zzz", tmp_path)
    assert "there is no prompt set ''" in sentence("", tmp_path)


def test_missing_file_and_folder(tmp_path):
    assert sentence("none.jsonl", tmp_path).startswith(f"the prompt file {tmp_path}/none.jsonl does not exist; give")
    (tmp_path / "folder").mkdir()
    assert sentence("folder", tmp_path) == f"{tmp_path}/folder is a folder; name the prompt file in it."


# What is wrong with a file, and where

GOOD = '{"prompt": "fine"}\n'


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ('{"prompt": "x"', "this is not valid JSON (Expecting ',' delimiter at column 15)"),
        ('["x"]', "a row must be a JSON object, and this is a list"),
        pytest.param('{"max_tokens": ' + "9" * 5000 + "}", "a number has thousands of digits", id="digits"),
        pytest.param("[" * 100_000, "or lists are nested hundreds deep; remove the row", id="nested"),
        ('{"prompt": "x", "sampling": {"temperature": NaN}}', "NaN is no number in JSON; write a finite one, or null"),
        ('{"prompt": "x", "sampling": {"top_p": -Infinity}}', "-Infinity is no number in JSON"),
        (
            '{"text": "x", "label": 1}',
            "no 'turns', 'messages', 'conversations', 'prompt' or 'question' (its keys: label, text)",
        ),
        ("{}", "(its keys: none)"),
        ('{"turns": []}', "'turns' must be a list with at least one text"),
        ('{"turns": "x"}', "'turns' must be a list"),
        ('{"turns": ["x", 3]}', "a turn must be a text that is not empty"),
        ('{"prompt": "  "}', "'prompt' must be a text that is not empty"),
        ('{"prompt": "\\ud83d"}', "half of a surrogate pair"),
        ('{"question": null}', "'question' must be a text"),
        ('{"messages": {}}', "'messages' must be a list"),
        ('{"messages": []}', "no message of the role 'user'"),
        ('{"messages": [{"role": "assistant", "content": "x"}]}', "no message of the role 'user'"),
        ('{"messages": [{"content": "x"}]}', 'an object with "role" and "content"'),
        ('{"messages": [{"role": ["user"], "content": "x"}]}', "the role ['user'] are not supported"),
        ('{"messages": [{"role": "tool", "content": "x"}]}', "the role 'tool' are not supported"),
        ('{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', "only text can be sent"),
        ('{"prompt": "x", "max_tokens": 0}', "'max_tokens' must be a whole number from 1, not 0"),
        ('{"prompt": "x", "max_tokens": true}', "'max_tokens' must be a whole number"),
        ('{"prompt": "x", "sampling": [1]}', "'sampling' must be an object"),
        ('{"prompt": "x", "sampling": {"stream": true}}', "'sampling' may not set 'stream'"),
        ('{"prompt": "x", "sampling": {"n": 4}}', "asks for n = 4 answers"),
        ('{"prompt": "x", "id": true}', "the id must be a text or a whole number"),
        ('{"prompt": "x", "language": 3}', "'language' must be a text"),
        ('{"body": {"messages": [{"role": "user", "content": "x"}], "n": 4}}', "asks for n = 4 answers"),
        ('{"body": {"input": "x"}}', "(its keys: input)"),
        ('{"prompt": "x", "id": "mine/1"}', "the id 'mine/1' is already used on line 1"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path, row, says):
    text = sentence(write(tmp_path, GOOD + "\n" + row + "\n"), tmp_path)
    assert text.startswith(f"{tmp_path}/mine.jsonl line 3: ")
    assert says in text
    assert text.endswith(".")
    assert "\n" not in text


@pytest.mark.parametrize("content", ["", "\n  \n"])
def test_an_empty_file(tmp_path, content):
    assert sentence(write(tmp_path, content), tmp_path) == (
        f"{tmp_path}/mine.jsonl has no prompts; write one JSON object a line."
    )


def test_text_that_is_not_utf8_is_named_by_line(tmp_path):
    name = write(tmp_path, GOOD.encode() + '{"prompt": "café"}'.encode("latin-1"))
    assert sentence(name, tmp_path) == (
        f"{tmp_path}/mine.jsonl line 2: this is not UTF-8 text; save the file as plain UTF-8."
    )


# Mixing


def made(name: str, size: int) -> tuple[Prompt, ...]:
    return tuple(Prompt(f"{name}/{n}", name, None, (("user", f"{name} {n}"),)) for n in range(size))


def tasks(prompts: tuple[Prompt, ...]) -> str:
    return "".join(p.task for p in prompts)


def test_interleave_worked_by_hand():
    # a: 2/3, b: 1/3. Deadlines: a 1.5, 3, 4.5, 6; b 3, 6. A set may go only when its count < slot * share.
    # slot 1: a (1.5) before b (3). slot 2: a has 1 < 4/3, due 3; b due 3; the tie goes to the first: a.
    # slot 3: a has 2, not < 2; b. Then the same again.
    assert tasks(interleave([(made("a", 9), 2.0), (made("b", 9), 1.0)], 6, seed=0)) == "aabaab"


def test_ten_percent_means_one_in_ten_exactly():
    order = tasks(interleave([(made("a", 3), 0.1), (made("b", 3), 0.2), (made("c", 3), 0.7)], 40, seed=1))
    for start in range(0, 40, 10):  # 0.1 + 0.2 + 0.7 in floats is not 1; typed decimals are taken as typed
        assert Counter(order[start : start + 10]) == {"a": 1, "b": 2, "c": 7}


def test_prefixes_hold_where_smooth_weighted_round_robin_strays_by_1_14():
    weights = (2, 20, 1, 1, 2, 1, 20, 2, 1, 20)  # sum 70
    order = tasks(interleave([(made(str(i), 2), w) for i, w in enumerate(weights)], 140, seed=0))
    for n in range(1, 141):
        for i, weight in enumerate(weights):
            assert abs(order[:n].count(str(i)) - Fraction(n * weight, 70)) < 1


shares_strategy = st.lists(
    st.tuples(st.integers(1, 7), st.one_of(st.integers(0, 50), st.decimals(0, 9, places=2).map(float))),
    min_size=1,
    max_size=8,
).filter(lambda pairs: any(share > 0 for _, share in pairs))


@given(shares_strategy, st.integers(0, 120), st.integers())
def test_every_prefix_is_within_one_of_the_shares(pairs, n, seed):
    sets = [(made(chr(97 + i), size), share) for i, (size, share) in enumerate(pairs)]
    order = tasks(interleave(sets, n, seed))
    assert len(order) == n
    whole = sum(Fraction(str(share)) for _, share in pairs)
    for i, (_, share) in enumerate(pairs):
        count = 0
        for slot, letter in enumerate(order, 1):
            count += letter == chr(97 + i)
            assert abs(count - slot * Fraction(str(share)) / whole) < 1


@given(shares_strategy, st.integers(0, 120), st.integers())
def test_same_seed_same_order_and_shorter_is_a_prefix(pairs, n, seed):
    sets = [(made(chr(97 + i), size), share) for i, (size, share) in enumerate(pairs)]
    order = interleave(sets, n, seed)
    assert interleave(sets, n, seed) == order
    assert interleave(sets, n // 2, seed) == order[: n // 2]


@given(st.integers(1, 9), st.integers(1, 9), st.integers())
def test_a_set_begins_again_only_after_all_its_prompts(size_a, size_b, seed):
    order = interleave([(made("a", size_a), 3), (made("b", size_b), 1)], 80, seed)
    for name, size in (("a", size_a), ("b", size_b)):
        drawn = [p.id for p in order if p.task == name]
        assert drawn[size:] == drawn[:-size]  # repeats are exactly one round apart
        assert len(set(drawn[:size])) == min(size, len(drawn))


def test_seeds_shuffle_and_sets_are_shuffled_apart():
    sets = [(made("a", 30), 1.0), (made("b", 30), 1.0)]
    first, second = interleave(sets, 60, 1), interleave(sets, 60, 2)
    assert first != second
    assert Counter(first) == Counter(second) == Counter(sets[0][0] + sets[1][0])
    numbers = {name: [p.id.split("/")[1] for p in first if p.task == name] for name in "ab"}
    assert numbers["a"] != numbers["b"]


def test_the_order_for_a_seed_stays_the_same_between_releases():
    # Studies are resumed and compared years later; a change of this order must be seen.
    order = interleave([(made("a", 4), 1.0), (made("b", 3), 1.0)], 8, seed=7)
    assert [p.id for p in order] == ["a/1", "b/1", "a/0", "b/2", "a/3", "b/0", "a/2", "b/1"]


def test_a_share_of_zero_is_never_drawn_and_may_be_empty():
    assert tasks(interleave([(made("a", 2), 1.0), ((), 0.0), (made("c", 1), 0)], 5, seed=0)) == "aaaaa"


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        ([(made("a", 1), -0.5)], "share is -0.5"),
        ([(made("a", 1), math.nan)], "share is nan"),
        ([(made("a", 1), math.inf)], "share is inf"),
        ([(made("a", 1), 0.0)], "no prompt set has a share above 0"),
        ([], "no prompt set has a share above 0"),
        ([((), 1.0)], "share 1.0 is empty"),
    ],
)
def test_shares_that_cannot_be_are_refused(sets, says):
    with pytest.raises(UserError, match=says):
        interleave(sets, 3, seed=0)


def test_one_id_for_two_prompts_is_refused_and_the_same_prompt_twice_is_not():
    one, other = made("a", 1), (Prompt("a/0", "a", None, (("user", "different"),)),)
    with pytest.raises(UserError, match="two different prompts have the id 'a/0'"):
        interleave([(one, 1.0), (other, 1.0)], 2, seed=0)
    assert interleave([(one, 1.0), (one, 1.0)], 2, seed=0) == one + one


def test_a_negative_count_is_a_bug_of_the_caller():
    with pytest.raises(ValueError, match="-1"):
        interleave([(made("a", 1), 1.0)], -1, seed=0)
