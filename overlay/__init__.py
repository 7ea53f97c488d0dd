"""Content-based publish/subscribe on a tree of brokers; knows no transactions."""
