"""A topic of Kafka as a sink: staged rows are sent in one transaction, together with the mark of their batch."""
