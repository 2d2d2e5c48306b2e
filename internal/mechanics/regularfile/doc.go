// Package regularfile reads files whose paths an operator gives, and which may be anything.
package regularfile
