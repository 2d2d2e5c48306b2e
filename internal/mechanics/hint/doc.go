// Package hint implements errors that carry advice: what failed and why in the error, what to do in the hint. It also formats errors for the journal.
package hint
