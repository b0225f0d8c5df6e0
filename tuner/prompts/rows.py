"""One row of a prompt file, in any of the formats people have, turned into a Prompt.

Pure: the caller reads the file and says where the row stands, for the error sentence.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tuner.errors import UserError

ID_KEYS = ("id", "question_id", "task_id", "custom_id")
#: ShareGPT's names of the speakers.
SPEAKERS = {"human": "user", "gpt": "assistant"}
ROLES = frozenset({"system", "developer", "user", "assistant"})
# Parts of a request that the load client sets itself, or that do not change the generated text.
CLIENT_KEYS = frozenset(
    {"model", "messages", "prompt", "max_tokens", "max_completion_tokens", "stream", "stream_options"}
)
BOOKKEEPING_KEYS = frozenset({"n", "user", "metadata", "store", "service_tier"})
# The instruction with which published acceptance lengths for HumanEval were measured.
HUMANEVAL_INSTRUCTION = "Complete the code I provided.\n\n"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request of the workload.

    `messages` is what is sent: (role, content) pairs that end with the user's turn. `further_turns` are the
    user's later turns, each to be sent after the answer to the one before; empty unless they were asked for.
    `sampling` holds the parameters this row insists on, values as in JSON.
    """

    id: str
    task: str
    language: str | None
    messages: tuple[tuple[str, str], ...]
    max_tokens: int | None = None
    sampling: tuple[tuple[str, Any], ...] = field(default=(), hash=False)
    further_turns: tuple[str, ...] = ()


def prompt_from_row(row: Mapping[str, Any], stem: str, line: int, where: str, all_turns: bool) -> Prompt:
    """Raises UserError, beginning with `where`, if the row is in none of the formats."""
    batch = isinstance(row.get("body"), dict)
    request: Mapping[str, Any] = row["body"] if batch else row
    messages, further = _conversation(request, where)
    return Prompt(
        id=_id(row, stem, line, where),
        task=_label(row, ("task", "category"), where) or _implied_task(request) or stem,
        language=_label(row, ("language",), where),
        messages=messages,
        max_tokens=_max_tokens(request, where),
        sampling=_batch_sampling(request, where) if batch else _sampling(row, where),
        further_turns=further if all_turns else (),
    )


def _conversation(request: Mapping[str, Any], where: str) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    if "messages" in request:
        return _messages(request["messages"], where), ()
    if isinstance(talk := request.get("conversations"), list):
        return _messages([_as_message(item) for item in talk], where), ()
    if "turns" in request:
        turns = request["turns"]
        if not isinstance(turns, list) or not turns:
            raise _error(where, "'turns' must be a list with at least one text")
        first, *later = [_text(turn, "a turn", where) for turn in turns]
        return (("user", first),), tuple(later)
    if "prompt" in request:
        text = _text(request["prompt"], "'prompt'", where)
        return (("user", HUMANEVAL_INSTRUCTION + text if _is_humaneval(request) else text),), ()
    if "question" in request:
        return (("user", _text(request["question"], "'question'", where)),), ()
    raise _error(
        where,
        "the row has no 'turns', 'messages', 'conversations', 'prompt' or 'question' "
        f"(its keys: {', '.join(sorted(request)) or 'none'}); add one of them",
    )


def _messages(value: Any, where: str) -> tuple[tuple[str, str], ...]:
    """Recorded conversations often end with the model's answer: what follows the user's last turn is dropped."""
    if not isinstance(value, list):
        raise _error(where, '\'messages\' must be a list of {"role", "content"} objects')
    messages = [_message(item, where) for item in value]
    while messages and messages[-1][0] != "user":
        messages.pop()
    if not messages:
        raise _error(where, "'messages' has no message of the role 'user'; add the user's turn")
    return tuple(messages)


def _as_message(item: Any) -> Any:
    """An entry of `conversations`, as trainers of drafts take them: role and content, or ShareGPT's from and value."""
    if isinstance(item, dict) and "from" in item and "value" in item:
        return {"role": SPEAKERS.get(str(item["from"]), item["from"]), "content": item["value"]}
    return item


def _message(item: Any, where: str) -> tuple[str, str]:
    if not isinstance(item, dict) or "role" not in item or "content" not in item:
        raise _error(where, 'each of \'messages\' must be an object with "role" and "content"')
    role, content = item["role"], item["content"]
    if not isinstance(role, str) or role not in ROLES or item.get("tool_calls"):
        raise _error(where, f"messages with tool calls or the role {role!r} are not supported; remove the row")
    if isinstance(content, list):
        content = "".join(_text_part(part, where) for part in content)
    return role, _text(content, f"the content of a {role} message", where)


def _text_part(part: Any, where: str) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        raise _error(
            where,
            "only text can be sent, and a message has a part that is not of type 'text'; remove the row",
        )
    return _text(part.get("text"), "a text part", where)


def _text(value: Any, what: str, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _error(where, f"{what} must be a text that is not empty")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise _error(where, f"{what} has half of a surrogate pair (\\ud800 to \\udfff); repair the text") from error
    return value


def _id(row: Mapping[str, Any], stem: str, line: int, where: str) -> str:
    """Bare numbers get the file's name before them: they would collide between sets."""
    given = next((row[key] for key in ID_KEYS if row.get(key) is not None), line)
    if isinstance(given, bool) or not isinstance(given, int | str) or given == "":
        raise _error(where, "the id must be a text or a whole number")
    return f"{stem}/{given}" if isinstance(given, int) or given.isdigit() else given


def _label(row: Mapping[str, Any], keys: tuple[str, ...], where: str) -> str | None:
    for key in keys:
        if row.get(key) is not None:
            return _text(row[key], f"'{key}'", where)
    return None


def _implied_task(request: Mapping[str, Any]) -> str | None:
    if _is_humaneval(request):
        return "code"
    return "maths" if "question" in request and "answer" in request else None


def _is_humaneval(request: Mapping[str, Any]) -> bool:
    # MBPP also has task_id and prompt, but numbers its tasks and asks in prose.
    return "prompt" in request and isinstance(request.get("task_id"), str)


def _max_tokens(request: Mapping[str, Any], where: str) -> int | None:
    value = next((request[k] for k in ("max_completion_tokens", "max_tokens") if request.get(k) is not None), None)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _error(where, f"'max_tokens' must be a whole number from 1, not {value!r}")
    return value


def _sampling(row: Mapping[str, Any], where: str) -> tuple[tuple[str, Any], ...]:
    given = row.get("sampling") or {}
    if not isinstance(given, dict):
        raise _error(where, "'sampling' must be an object such as {\"temperature\": 0.7}")
    for key in sorted(CLIENT_KEYS & given.keys()):
        raise _error(where, f"'sampling' may not set {key!r}, which belongs to the request itself; remove it")
    _one_answer(given, where)
    return tuple(sorted(given.items()))


def _batch_sampling(body: Mapping[str, Any], where: str) -> tuple[tuple[str, Any], ...]:
    """All that shapes the answer is kept, also keys unknown here, so that the engine judges them."""
    _one_answer(body, where)
    return tuple(sorted((k, v) for k, v in body.items() if k not in CLIENT_KEYS | BOOKKEEPING_KEYS))


def _one_answer(body: Mapping[str, Any], where: str) -> None:
    if body.get("n", 1) != 1:
        raise _error(where, f"the row asks for n = {body['n']} answers, and a request is measured with one; remove 'n'")


def _error(where: str, what: str) -> UserError:
    return UserError(f"{where}: {what}.")
