"""Machine code as text: the instructions of a kernel, its loops, and the one that multiplies.

Reads what `nvdisasm` prints of a cubin. A loop is found by its jump back: whatever can reach the jump without passing
where it goes, which has to lie on every way there. Code that the compiler moved out of the way, such as a wait for a
barrier, thus counts to the loop that waits.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

LABEL = re.compile(r"^(\.L_x_\w+):")
LINE = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][A-Z0-9]*)([.\w]*)(.*)")
SIZED = ("LDS", "LDG", "LDGSTS")  # counted apart by the bits that a thread loads,
MATRICES = {"M88": "32", "2": "64", "4": "128"}  # as LDSM is, by how many matrices it loads
TENSOR = ("HMMA", "HGMMA", "UTCHMMA")
FMAS = ("FFMA", "FFMA2")
JUMPS = ("BRA", "BRX", "JMP", "JMX")


@dataclass(frozen=True)
class Instruction:
    """One instruction: `name` is its operation, with the bits that a thread loads for a load."""

    name: str
    targets: tuple[int, ...] = ()  # where it may jump to, as places in the code
    falls_through: bool = True  # whether the next instruction may follow it


def instructions(text: str) -> list[Instruction]:
    """The instructions of a disassembly but for those that never run (`@!PT`)."""
    lines: list[re.Match[str]] = []
    places: dict[str, int] = {}
    for line in text.splitlines():
        if label := LABEL.match(line):
            places[label[1]] = len(lines)
        elif (code := LINE.match(line)) and code[1] != "!PT":
            lines.append(code)
    return [_instruction(line, places) for line in lines]


def _instruction(line: re.Match[str], places: dict[str, int]) -> Instruction:
    predicate, operation, modifiers, operands = line.groups()
    name = operation
    if operation in SIZED:
        name += "." + next((part for part in modifiers.split(".") if part in ("64", "128")), "32")
    elif operation == "LDSM":
        name += "." + MATRICES.get(modifiers.rpartition(".")[2], "32")
    jumps = operation in JUMPS
    targets = tuple(places[label] for label in re.findall(r"\.L_x_\w+", operands) if label in places) if jumps else ()
    # BRA.U tests a predicate among its operands
    always = predicate in (None, "PT") and not (jumps and re.match(r"\s+!?U?P\d", operands))
    return Instruction(name, targets, not (always and (jumps or operation in ("EXIT", "RET"))))


def loops(code: list[Instruction]) -> list[list[int]]:
    """The loops, each as the places of its instructions; loops with one head are one."""
    after = [
        [place for place in (*each.targets, *([i + 1] if each.falls_through else [])) if place < len(code)]
        for i, each in enumerate(code)
    ]
    before: list[list[int]] = [[] for _ in code]
    for i, places in enumerate(after):
        for place in places:
            before[place].append(i)
    bodies: dict[int, set[int]] = {}
    for tail, each in enumerate(code):
        for head in each.targets:
            if head <= tail and tail not in _reached(0, after, without=head):
                bodies.setdefault(head, {head}).update(_reached(tail, before, without=head))
    return [sorted(body) for body in bodies.values()]


def _reached(start: int, edges: list[list[int]], without: int) -> set[int]:
    """What can be reached from `start` along `edges`, itself included, never entering `without`."""
    found, waiting = set(), [start]
    while waiting:
        place = waiting.pop()
        if place not in found and place != without:
            found.add(place)
            waiting += edges[place]
    return found


def main_loop(text: str) -> dict[str, int]:
    """How often each instruction stands in the loop that multiplies; empty where nothing does.

    It is an innermost one of those with tensor core products or, in a kernel without any, with FMAs: the one with the
    most. Where other warps copy by TMA, what they do in a turn of theirs is counted with it.
    """
    code = instructions(text)
    turns = [(set(body), Counter(code[i].name for i in body)) for body in loops(code)]
    found = _innermost(turns, TENSOR) or _innermost(turns, FMAS)
    copies = _innermost(turns, ("UTMALDG",))
    return {"UTMALDG": copies["UTMALDG"], **found} if found and copies else dict(found)


def _innermost(turns: list[tuple[set[int], Counter[str]]], names: tuple[str, ...]) -> Counter[str]:
    """Of the loops with any of these instructions, and no such loop within, the one with the most."""
    having = [(body, counts) for body, counts in turns if any(counts[name] for name in names)]
    innermost = [counts for body, counts in having if not any(other < body for other, _ in having)]
    return max(innermost, key=lambda counts: sum(counts[name] for name in names), default=Counter())
