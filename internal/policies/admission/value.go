package admission

// A State says what a source knows about a field of the pod.
type State uint8

const (
	// StateUnknown is the zero value: the source does not say whether the pod sets the field.
	StateUnknown State = iota
	// StateAbsent means that the source carries the field and the pod does not set it.
	StateAbsent
	// StateSet means that the pod sets the field.
	StateSet
)

// A Value is what a source knows about one field: whether the pod sets it, and the value that takes effect when the pod
// runs. Either can be known without the other. The zero Value is unknown in both respects.
//
// A Value does not copy a slice or a map. Neither the source nor a reader may modify it afterwards.
type Value[T any] struct {
	value T
	state State
	known bool // value takes effect
}

// Set returns the Value of a field that the pod sets.
func Set[T any](v T) Value[T] { return Value[T]{value: v, state: StateSet, known: true} }

// Absent returns the Value of a field that the pod does not set, if the source does not know the default.
func Absent[T any]() Value[T] { return Value[T]{state: StateAbsent} }

// AbsentAs returns the Value of a field that the pod does not set, and whose default v takes effect.
func AbsentAs[T any](v T) Value[T] { return Value[T]{value: v, state: StateAbsent, known: true} }

// Effective returns the Value of a field of which the source knows the value that takes effect, and not whether the pod
// sets it. The CRI carries a boolean so: false is both the default and an explicit false.
func Effective[T any](v T) Value[T] { return Value[T]{value: v, known: true} }

// Get returns the value that the pod sets, and the state. The value is the zero T unless the state is StateSet.
func (v Value[T]) Get() (T, State) {
	if v.state != StateSet {
		var zero T
		return zero, v.state
	}
	return v.value, v.state
}

// State returns whether the pod sets the field.
func (v Value[T]) State() State { return v.state }

// Effective returns the value that takes effect when the pod runs; ok is false if the source does not know it.
func (v Value[T]) Effective() (value T, ok bool) { return v.value, v.known }
