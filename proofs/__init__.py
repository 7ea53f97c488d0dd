"""What is guaranteed, and how a machine checks it."""
