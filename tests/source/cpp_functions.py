"""Where the functions of a C++ or CUDA source begin and end, by its braces. No compiler: sources with any flags can be read."""

import re

_COMMENT_OR_TEXT = re.compile(
    r"""//[^\n]*
    |/\*.*?\*/
    |(?:u8|[uUL])?R"([^\s()\\]{0,16})\(.*?\)\1"
    |(?:u8|[uUL])?"(?:\\.|[^"\\\n])*"
    |(?<![0-9a-fA-FxX])(?:u8|[uUL])?'(?:\\.|[^'\\\n])+'""",
    re.S | re.X,
)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\\n|\\.)*", re.M)
_OPERATOR = re.compile(r"\boperator\s*(?:\(\s*\)|\[\s*\]|[-+*/%^&|~!=<>,]+)")
_TYPE = re.compile(r"^(?:export\s+)?(?:typedef\s+)?(?:class|struct|union|enum)\b")
_SCOPE = re.compile(r"\bnamespace\b|^extern\s+\"\"$")
_LABEL = re.compile(r"^\s*(?:(?:public|private|protected)\s*:\s*)+")
_AFTER_PARAMETERS = re.compile(r"(?:\)|\bconst|\bnoexcept|\boverride|\bfinal|\bmutable|\btry|&&?)$")


def _blank(match):
    """Text without its letters, with its lines and, where it was a string, its quotes."""
    text = match[0]
    return ('""' if text[0] not in "/'" else "0" if text[0] == "'" else "") + "\n" * text.count("\n")


def _without_other_branches(text):
    """Only the first branch of each conditional: the braces of all together may not match. Directives become empty lines."""
    skips, lines, out = [], iter(text.split("\n")), []
    for line in lines:
        directive = re.match(r"[ \t]*#[ \t]*(\w+)", line)
        whole = [line]
        while directive and whole[-1].endswith("\\"):
            whole.append(next(lines, ""))
        word = directive[1] if directive else ""
        if word.startswith("if"):
            skips.append(False)
        elif word in ("else", "elif") and skips:
            skips[-1] = True
        elif word == "endif" and skips:
            skips.pop()
        out += [""] * len(whole) if directive or any(skips) else [line]
    return "\n".join(out)


def _without_brackets(text):
    """Without what stands in parentheses, and without the parameters of templates."""
    depth, out = 0, []
    for c in text:
        depth += c == "("
        if depth == 0 or (c in "()" and depth == 1):
            out.append(c)
        depth -= c == ")"
    text = "".join(out)
    for _ in range(8):
        text = re.sub(r"\btemplate\s*<[^<>]*>|<[^<>=;]*>", " ", text)
    return text


def _kind(statement):
    """What a brace opens behind this text: "scope", "function", "member" (of a constructor's list) or "other"."""
    text = re.sub(r"\[\[.*?\]\]|\balignas\([^()]*\)", " ", statement).strip()
    bare = _without_brackets(_OPERATOR.sub("operator", text)).strip()
    bare = _LABEL.sub("", bare)
    if _SCOPE.search(bare) or (_TYPE.match(bare) and "(" not in bare):
        return "scope"
    if "(" not in bare or "=" in bare:
        return "other"
    if re.search(r"\)[^:]*(?<!:):(?!:)", bare) and not re.search(r"[)}]$", bare):
        return "member"
    if _AFTER_PARAMETERS.search(bare) or "->" in bare or bare.endswith("}"):
        return "function"
    return "other"


def _name(statement):
    """`Class::Name`, or `MACRO(first, second)` where the definition is made by a macro."""
    text = re.sub(
        r"\[\[.*?\]\]|__launch_bounds__\s*\([^()]*(?:\([^()]*\)[^()]*)*\)|\balignas\([^()]*\)", " ", statement
    )
    text = _LABEL.sub("", text)
    found = re.search(
        r"((?:[\w~]+\s*(?:<[^<>()]*>)?\s*::\s*)*(?:operator\s*(?:\(\s*\)|[^\s\w(]+|\w+)|~?\w+))\s*\(", text
    )
    if not found:
        return "operator"  # of a conversion, or new and delete
    name = re.sub(r"\s+", "", found[1])
    if re.fullmatch(r"[A-Z][A-Z0-9_]+", name):
        return name + "(" + " ".join(text[found.end() :].split(")")[0].split()) + ")"
    return name


def functions(text):
    """[(name, first line, last line)] of the functions, from the first line of the signature to the closing brace. Functions and lambdas
    within a function are a part of that one."""
    text = _without_other_branches(_COMMENT_OR_TEXT.sub(_blank, text))
    found, stack = [], []  # of the open braces: what each opens, the statement's first line and its text
    statement, first, line = "", 0, 1
    for token in re.findall(r"[{};\n]|[^{};\n]+", text):
        inside = bool(stack) and stack[-1][0] != "scope"
        if token == "\n":
            line += 1
        if token == "{":
            kind = "inner" if inside else _kind(statement)
            stack.append((kind, first, statement))
            if kind == "scope":
                statement = ""
        elif token == "}":
            if not stack:
                raise ValueError(f"line {line}: a brace closes nothing")
            kind, begun, before = stack.pop()
            if kind == "function":
                found.append((_name(before), begun, line))
            # The list of a constructor goes on behind a member, a variable's statement behind its value.
            statement = statement + "}" if kind in ("member", "other") else statement if kind == "inner" else ""
        elif inside:
            continue
        elif token == ";":
            statement = ""
        else:
            if not re.sub(_LABEL, "", statement).strip() and token.strip():
                first = line
            statement += token
    if stack:
        raise ValueError(f"{len(stack)} braces are open at the end")
    return found
