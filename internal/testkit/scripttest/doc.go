// Package scripttest implements commands for the scripts that test the programs of the project.
package scripttest
