"""Pages and cards made of records: `report.html` for a release, `show` for a notebook cell."""

from __future__ import annotations

from workbench.report.cards import Card, record_html, show

__all__ = ["Card", "record_html", "show"]
