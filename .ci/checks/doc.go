// Package checks holds the rules of the house that no linter holds: what every package must have
// ([Layout]) and may import ([Imports]), and that every relative link leads somewhere ([Links]).
//
// It is a module of its own, so that the go.mod of the project lists what ships and nothing else.
package checks
