// Package hint implements errors that carry advice: what failed and why in the error, what to do in the hint.
package hint
