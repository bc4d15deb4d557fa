"""Who says what, where names stand before what is said: bold, as headings, in quotations or plain."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from .markup import words

# In the languages that chat programs are used in: a conversation is read in any, even if it cannot be judged.
STUDENT = words(
    "user student me human you learner pupil asker usuario estudiante alumno alumna usuário aluno benutzer "
    "schüler schülerin studentin nutzer utilisateur étudiant étudiante élève moi utente studente ich yo eu 用户 "
    "学生 пользователь студент ученик ユーザー 사용자"
)
TUTOR = words(
    "assistant tutor ai bot chatbot model teacher ta instructor agent helper llm mentor coach professor gpt "
    "asistente profesor profesora assistente assistent lehrer tutorin assistante professeur tuteur professore "
    "ki ia 助手 老师 ассистент учитель помощник アシスタント 어시스턴트"
)
SILENT = frozenset(("system", "tool", "developer"))
ASKING, ANSWERING = frozenset(("question", "prompt", "q")), frozenset(("answer", "response", "reply", "a"))
_BESIDE = words("ai the my our teaching math maths virtual human study private language online chat a b c")
# Words that begin lines of an explanation, and are nobody's name.
_NO_NAMES = words(
    "answer solution part step note problem time space memory summary hint proof given claim so thus "
    "therefore where recall result conclusion example table figure output input compute case remark warning "
    "tip question final score scores weights value values query key keys hence since because first second "
    "third finally next now then with and but or if let mean variance expectation definition theorem lemma "
    "correction check verification option options intuition reason explanation assumption setup pseudocode "
    "code listing complexity blank title date author course name subject task exercise derivation shape "
    "shapes formula equation insight takeaway multi attention answers try attempt attempts guess context "
    "constraints constraint edit deadline background update instructions instruction rules rule goal goals format "
    "requirements requirement topic details information info notes hints my your our this these parts problems "
    "questions statement exam homework assignment level tone style source sources link links page reference "
    "references ps pps fyi tldr caveat reminder request addendum attachment thoughts thinking work working "
    "solutions steps results data points point reasons total cost costs projections scores masks mask encoder "
    "decoder layer batch large long here sanity"
)
_LABEL = re.compile(
    r"[ \t]{0,3}(?P<quote>(?:>[ \t]?){0,4})(?P<hash>\#{1,6}[ \t]+)?(?P<open>\*\*|__|\*|\[)?[ \t]*"
    r"(?:[\[(]?\d{1,2}:\d\d(?::\d\d)?(?:[ ]?[ap]m)?[\])]?[ \t,-]{0,3})?"
    r"(?P<name>[^\W\d_][\w .'’/-]{0,30}?(?:[ ]\([\w .,:'-]{1,24}\))?)(?P<said>[ ](?:said|says|asks|asked|wrote))?"
    r"[ \t]*(?:(?P<colon>[:：])[ \t]*(?P<close>\*\*|__|\*|\])?|(?P<shut>\*\*|__|\*|\])?[ \t]*(?P<late>[:：])|"
    r"(?:\*\*|__|\*|\])?(?=[ \t]*$)|(?:\*\*|__|\*|\])?[ \t]*[—–|,(\[-]{0,2}[ \t]*"
    r"(?:today|yesterday|\d{4}-\d\d-\d\d)?[ \t]*(?:at )?"
    r"\d{1,2}:\d\d(?::\d\d)?(?:[ ]?[apAP][mM])?[)\]]?(?=[ \t]*$))(?P<rest>(?:[ \t*].*)?)$"
)
_SIGNS = re.compile(r"[\U0001F000-\U0001FAFF\u2600-\u27BF\uFE0F\u200D]+[ \t]*")


@dataclass(frozen=True)
class Label:
    """A name at the beginning of a line: where it stands, and what follows it on the line."""

    line: int
    name: str
    role: str | None
    marked: bool
    heading: bool
    quoted: bool
    colon: bool
    rest: str


def role_of(name: str) -> str | None:
    """ "student", "tutor" or "silent" for a name that tells; None for any other.

    >>> role_of("Student 2"), role_of("AI tutor"), role_of("Dana (student)"), role_of("Model Performance")
    ('student', 'tutor', 'student', None)
    """
    inside = re.search(r"\(([^()]{1,24})\)", name)
    words = re.findall(r"[^\W\d_]+", name.split("(")[0].lower())
    for role, known in (("student", STUDENT), ("tutor", TUTOR), ("silent", SILENT)):
        if words and len(words) <= 3 and words[-1] in known and all(word in _BESIDE | known for word in words[:-1]):
            return role
        if len(words) == 2 and words[0] in known and len(words[1]) == 1:
            return role
    if inside is None:
        return None
    roles = {role_of(word) for word in re.findall(r"[^\W\d_]+", inside.group(1))}
    return next((role for role in ("student", "tutor") if role in roles), None)


def labelled(text: str) -> tuple[str, list[tuple[str, str, str]]] | None:
    """What stands before the first speaker, and the turns (speaker, text, name); None where no speakers are marked."""
    lines = text.split("\n")
    labels = list(_labels(lines))
    roles = _roles(labels)
    if roles is None:
        return None
    spoken = [label for label in labels if (roles.get(_key(label)) is not None)]
    both = len({roles[_key(label)] for label in spoken} - {"silent"}) > 1
    preamble = "\n".join(lines[: spoken[0].line])
    turns: list[tuple[str, str, str]] = []
    carried = _moved_headings(preamble)
    preamble = preamble[: len(preamble) - len(carried)] if carried else preamble
    for label, following in zip(spoken, [*spoken[1:], None], strict=True):
        end = len(lines) if following is None else following.line
        said = [_first_line(label), *lines[label.line + 1 : end]]
        said, unquoted = _quotation(said, both) if label.quoted else (said, [])
        body = "\n".join([carried, *said]) if carried else "\n".join(said)
        carried = "" if following is None else _moved_headings("\n".join(unquoted) if unquoted else body)
        if carried and not unquoted:
            body = body[: len(body) - len(carried)]
        role = roles[_key(label)]
        if role == "silent":
            continue
        if turns and turns[-1][0] == role and label.heading and label.rest:
            turns[-1] = (role, f"{turns[-1][1]}\n{body}", turns[-1][2])
        else:
            turns.append((role, body, label.name))
        if any(line.strip() for line in unquoted):
            other = "tutor" if role == "student" else "student"
            tail = "\n".join(unquoted)
            turns.append((other, tail[: len(tail) - len(carried)] if carried else tail, ""))
    return preamble, turns


def _labels(lines: list[str]) -> Iterator[Label]:
    """Every line that begins with what may be a name; code is passed over."""
    fences = [place for place, line in enumerate(lines) if line.lstrip(" >").startswith(("```", "~~~"))]
    open_fence = fences[-1] if len(fences) % 2 else -1
    coded = False
    places = set(fences) - {open_fence}
    for place, line in enumerate(lines):
        if place in places:
            coded = not coded
        if coded or not line or len(line) > 2**20:
            continue
        if len(line) > 60 and ":" not in line[:80] and "：" not in line[:80]:
            continue
        head = line[:240] if line.isascii() else _SIGNS.sub("", line[:240], count=2)
        found = _LABEL.match(head)
        if found is None:
            continue
        colon = bool(found["colon"] or found["late"])
        alone = not found["rest"].strip(" *")
        marked = bool(found["hash"] or found["open"])
        role = role_of(found["name"])
        named = marked and _name_like(found["name"])
        if not colon and not (alone and (role is not None or found["said"] or named)):
            continue
        rest = found["rest"].strip() + line[240:] if len(line) > 240 else found["rest"].strip()
        if found["open"] in ("**", "__") and not found["close"] and found["open"] in rest:
            rest = found["open"] + rest
        yield Label(place, found["name"].strip(), role, marked, bool(found["hash"]), bool(found["quote"]), colon, rest)


def _key(label: Label) -> tuple[str, bool]:
    return label.name.lower(), label.marked


def _roles(labels: list[Label]) -> dict[tuple[str, bool], str] | None:
    """Which labels are speakers, and whose side they are on; None where there are no two sides."""
    for marked in (True, False):
        mine = [label for label in labels if label.marked == marked]
        known: dict[str, str] = {label.name.lower(): label.role for label in mine if label.role}
        sides = set(known.values()) - {"silent"}
        if not sides:
            known |= _asked_and_answered(mine)
            sides = set(known.values()) - {"silent"}
        if len(sides) == 1:
            known |= _other_side(mine, known, "tutor" if "student" in sides else "student")
        elif not sides:
            known |= _two_names(mine)
        else:
            known |= {
                name: side
                for name, side in _other_side(mine, known, "tutor", least=2).items()
                if sum(label.name.lower() == name for label in mine) > 1
            }
        if len(set(known.values()) - {"silent"}) == 2:
            return {(name, marked): role for name, role in known.items()}
    one = {(label.name.lower(), label.marked): label.role for label in labels if label.role}
    return {key: role for key, role in one.items() if role} or None


def _asked_and_answered(labels: list[Label]) -> dict[str, str]:
    """Lines that begin "Question:" and "Answer:" in turn, where nobody has another name."""
    names = [label.name.lower() for label in labels if label.colon or label.heading]
    both = [name for name in names if _unnumbered(name) in ASKING | ANSWERING]
    turns = [_unnumbered(name) in ASKING for name in both]
    if len(both) < 2 or not turns[0] or all(turns) or sum(a == b for a, b in pairwise(turns)) > 0:
        return {}
    return {name: "student" if _unnumbered(name) in ASKING else "tutor" for name in both}


def _unnumbered(name: str) -> str:
    return re.sub(r"[ #]*\d+$", "", name)


def _name_like(name: str) -> bool:
    words = re.findall(r"[^\W\d_]+", name.lower())
    if re.fullmatch(r"(?:q|p|ex|pb|no|eq|fig|tab)\.? ?\d+[a-z]?", name, re.IGNORECASE):
        return False  # "Q1:" numbers a question
    return 1 <= len(words) <= 3 and name[:1].isupper() and not any(word in _NO_NAMES for word in words)


def _other_side(labels: list[Label], known: dict[str, str], side: str, least: int = 1) -> dict[str, str]:
    """The names that answer those that are known: the first that may be one after each, where it recurs."""
    counted: dict[str, float] = defaultdict(float)
    waiting, calls = False, 0
    # A student comes before the tutor's answer, a tutor after the student's question.
    for label in labels if side == "tutor" else labels[::-1]:
        name = label.name.lower()
        if known.get(name) == side:
            waiting = False
        elif name in known:
            calls, waiting = calls + 1, True
        elif waiting and _name_like(label.name):
            counted[name] += 1 if label.colon else 0.5
            waiting = False
    if not counted:
        return {}
    # A name without a colon has to recur more often: a heading of the answer may stand alone as well.
    wanted = 1 if max(calls, least) > 1 else 0.75
    most = max(counted.values())
    return {name: side for name, times in counted.items() if times >= wanted and 3 * times >= most}


def _two_names(labels: list[Label]) -> dict[str, str]:
    """Two names that recur and take turns; who speaks first is the student."""
    names = [label.name.lower() for label in labels if label.colon and _name_like(label.name)]
    common = Counter(names).most_common(2)
    if len(common) < 2 or common[1][1] < 2:
        return {}
    both = [name for name in names if name in (common[0][0], common[1][0])]
    changes = sum(a != b for a, b in pairwise(both))
    if changes < 0.75 * (len(both) - 1):
        return {}
    return {both[0]: "student", next(name for name in both if name != both[0]): "tutor"}


def _first_line(label: Label) -> str:
    return f"## {label.rest}" if label.heading and label.rest else label.rest


def _moved_headings(text: str) -> str:
    """The end of a text that belongs to what follows: headings and rules with nothing below them."""
    lines = text.split("\n")
    place = len(lines)
    while place > 0 and (not lines[place - 1].strip() or re.match(r"\s*(?:#{1,6}\s|[-*_]{3,}\s*$)", lines[place - 1])):
        place -= 1
    while place < len(lines) and not lines[place].lstrip().startswith("#"):
        place += 1
    return "\n".join(lines[place:])


def _quotation(lines: list[str], whole: bool) -> tuple[list[str], list[str]]:
    """The lines of a quotation without their marks, and what comes after it: nothing where `whole`.

    Where both sides have names, what follows a quoted name is said by it even if its lines have no marks.
    """
    place = len(lines) if whole else 1
    while place < len(lines) and (
        lines[place].lstrip().startswith(">") or not lines[place].strip() or lines[place - 1].strip()
    ):
        place += 1
    return [re.sub(r"^\s*>\s?", "", line) for line in lines[:place]], lines[place:]
