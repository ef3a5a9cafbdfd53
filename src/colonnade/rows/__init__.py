"""From tables to what an organisation holds, in the agreed order, divided by id."""
