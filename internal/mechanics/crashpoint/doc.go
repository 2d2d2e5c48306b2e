// Package crashpoint names the instants at which a process may die and leave something half done.
// Built with the tag crashpoint a process kills itself, without any clean-up, at the instant that
// the environment names; otherwise Hit does nothing and costs nothing.
package crashpoint
