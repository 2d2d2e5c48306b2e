package offline

import "errors"

// ErrDamaged is returned by Compact for a file whose structure is damaged: what cannot be walked would be lost.
var ErrDamaged = errors.New("records: file damaged")
