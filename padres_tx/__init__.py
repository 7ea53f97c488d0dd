"""Transactions over publications, subscriptions and un-subscriptions of several clients."""
