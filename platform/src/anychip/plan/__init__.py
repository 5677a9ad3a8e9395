"""From a recipe to a plan: every decision with its reason, before a weight is read. Opens no device."""
