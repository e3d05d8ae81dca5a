"""`run.py report`: whether runs worked, as one page with figures."""

from report.command import ReportConfig, report_command

__all__ = ["ReportConfig", "report_command"]
