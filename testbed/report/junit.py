"""The verdict as a JUnit file, which every CI system shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree as Xml

_ILLEGAL = {number: None for number in range(32) if number not in (9, 10, 13)}


def junit(name: str, result: Mapping[str, Any]) -> bytes:
    """One test case for each check. Unknown is an error (nothing was proven), fail a failure."""
    checks = result["checks"]
    suite = Xml.Element("testsuite", name=name, tests=str(len(checks)))
    for kind, verdict in (("failures", "fail"), ("errors", "unknown"), ("skipped", "skipped")):
        suite.set(kind, str(sum(check["verdict"] == verdict for check in checks)))
    for check in checks:
        case = Xml.SubElement(suite, "testcase", classname=name, name=check["name"])
        text = _legal(check.get("summary", ""))
        tag = {"fail": "failure", "unknown": "error", "skipped": "skipped"}.get(check["verdict"])
        if tag is None:
            Xml.SubElement(case, "system-out").text = text
            continue
        outcome = Xml.SubElement(case, tag, message=text)
        outcome.text = _legal("\n".join(_line(violation) for violation in check.get("violations", [])))
    document: bytes = Xml.tostring(suite, encoding="utf-8", xml_declaration=True)
    return document


def _line(violation: Mapping[str, Any]) -> str:
    return f"{violation.get('what', '')} at {violation.get('where', '')}: {violation.get('evidence', '')}"


def _legal(text: str) -> str:
    """XML 1.0 has no control characters but tab and the line ends."""
    return text.translate(_ILLEGAL)
