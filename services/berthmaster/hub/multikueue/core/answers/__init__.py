"""What is told: events of the log, events for people who use kubectl, and answers to why."""
