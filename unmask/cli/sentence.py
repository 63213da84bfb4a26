"""Error sentences for the terminal: one line of bounded length, with the names of command-line options."""

import re

from cyclopts import CycloptsError, MissingArgumentError, UnknownOptionError, UnusedCliTokensError

from unmask.cli.input import STANDARD_INPUT

LONGEST = 1000
"""Maximum characters of a sentence; the middle of a longer one is omitted."""

_BOTH_WAYS = re.compile(r"\(\w+=[^()]*?, or (--[^()]+)\)")
"""How errors name a remedy for both interfaces: ``(truncation='end', or --truncation end)``."""


def one_line(sentence: str) -> str:
    """The sentence on one printable line of bounded length."""
    said = _BOTH_WAYS.sub(r"(\1)", sentence.replace(STANDARD_INPUT, "-"))
    if len(said) > LONGEST:
        said = f"{said[: LONGEST // 2]} ... {said[-LONGEST // 2 :]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in said)


def misuse(error: CycloptsError, arguments: list[str], program: str = "unmask") -> str:
    """What was wrong with the arguments of the program, in the terms the user typed."""
    said = " ".join(str(error).split())
    if isinstance(error, UnknownOptionError) and arguments[0] in ("finetune", "pretrain"):
        from unmask.training.finetune.trainer_names import OURS
        from unmask.training.run.trainer_names import PRETRAINING, instead_of_option

        names = OURS if arguments[0] == "finetune" else PRETRAINING
        option = re.search(r"-[\w-]+", said)
        said = said if option is None else instead_of_option(option[0], names)
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        extra = " ".join(error.unused_tokens)
        said = (
            f"nothing takes {extra!r}; an option has one value unless its help says how several are separated"
        )
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        name = error.argument.name
        if name not in arguments and error.argument.field_info.is_positional:
            said = f"{name.removeprefix('--').upper()} is missing"
        elif name in arguments[:-1] and (value := arguments[arguments.index(name) + 1]).startswith("-"):
            said = f'{name} has no value; one that begins with "-" is given as {name}={value}'
    return f"{said} (see: {program} --help)"
