// Command sbom writes the bill of materials of the programs that it is given, as of SOURCE_DATE_EPOCH.
package main

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/pullgate/pullgate/checks/sbom"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(programs []string) error {
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	bill, err := sbom.Of(programs, time.Unix(seconds, 0))
	if err != nil {
		return err
	}
	return bill.Write(os.Stdout)
}
