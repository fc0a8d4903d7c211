"""A mail for each failed run, in the words of the task that failed."""

from __future__ import annotations

# [START howto_notifier]
from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.sdk import DAG

from sluice_airflow.group import SluiceTaskGroup
from sluice_airflow.notifiers import FailureNotifier

mail = FailureNotifier(
    SmtpNotifier(to="team@example.org", subject="{{ sluice.subject }}", html_content="{{ sluice.html }}")
)

with DAG("example_alerts", schedule="@hourly", catchup=False, on_failure_callback=mail):
    SluiceTaskGroup("orders")
# [END howto_notifier]
