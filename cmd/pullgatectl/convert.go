package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/operator/cli"
	"github.com/pullgate/pullgate/internal/policies/condition"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
)

func policyConvertCommand(c *cli.Console) *cobra.Command {
	return &cobra.Command{
		Use:   "convert FILE",
		Short: "Convert a ClusterPolicy to ImageValidatingPolicies that mean the same",
		Long: `Print the ImageValidatingPolicy (policies.kyverno.io/v1, with expressions in CEL) that means
the same as a rule with verifyImages of a ClusterPolicy (kyverno.io/v1). Several rules
become several documents: write each to a file of its own.

Notes are on stderr. If a part has no equivalent, nothing is on stdout, stderr names each
such part, and the exit code is 1. No pullgated is asked.`,
		Example: `  pullgatectl policy convert signed.yaml > signed-ivp.yaml`,
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			data, err := os.ReadFile(args[0])
			if err != nil {
				return err
			}
			documents, notes, err := policyfiles.ConvertKyverno(policyfiles.File{Name: args[0], Data: data}, time.Now())
			for i := 0; i < len(documents) && err == nil; i++ { // what is printed can be loaded
				printed := []policyfiles.File{{Name: args[0], Data: documents[i]}}
				loaded, invalid := policyfiles.LoadIVP(printed, time.Now())
				if err = invalid; err == nil {
					err = condition.Check(loaded.Rules)
				}
			}
			if err != nil {
				for _, e := range safetext.Split(err) {
					_, _ = fmt.Fprintf(c.Err, "pullgatectl: %s\n", cli.Safe(safetext.OneLine(e).Error()))
				}
				return &cli.ExitError{Code: cli.ExitFailed, Err: program.WithHint(errors.New("nothing was converted"),
					"leave these parts out, or keep the ClusterPolicy")}
			}
			for _, note := range notes {
				_, _ = fmt.Fprintf(c.Err, "pullgatectl: %s\n", cli.Safe(note))
			}
			_, err = c.Out.Write(bytes.Join(documents, []byte("---\n")))
			return err
		},
	}
}
