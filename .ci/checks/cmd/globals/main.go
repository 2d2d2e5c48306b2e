// Command globals runs the analyzer of package globals for go vet -vettool.
package main

import (
	"golang.org/x/tools/go/analysis/unitchecker"

	"github.com/pullgate/pullgate/checks/globals"
)

func main() { unitchecker.Main(globals.Analyzer()) }
