"""`hyp verify`: audits the promises on the data at hand. Repairs only what is derived."""
