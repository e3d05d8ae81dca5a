"""`run.py report`: whether runs worked, as one page with figures."""

from commands.report.command import ReportConfig, report_command

__all__ = ["ReportConfig", "report_command"]
