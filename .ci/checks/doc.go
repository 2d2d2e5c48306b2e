// Package checks holds the rules of the house that no linter holds: what every package must have
// ([Layout]) and may import ([Imports]), that every relative link leads somewhere ([Links]), and that
// .golangci.yml finds each violation it is there to find (planted_test.go).
//
// It is a module of its own, so that the go.mod of the project lists what ships and nothing else.
package checks
