"""What steps cost and how long they take, from a plan and measured speeds. Runs nothing."""
