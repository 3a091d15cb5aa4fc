"""Builders and small worlds that several test tiers share."""
