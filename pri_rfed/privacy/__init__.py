"""What was released, as events; what that costs, by accountants; ledgers, plans and audits."""
