// Package daemon implements pullgated from its parts. Run is the list of its steps.
package daemon
