package cli

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// CompleteFlags makes the shell complete the values of a command's flags with data from the daemon.
func (c *Console) CompleteFlags(cmd *cobra.Command) {
	for flag, from := range ofFlags() {
		if cmd.Flags().Lookup(flag) != nil {
			_ = cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
				return c.complete(cmd, begun, from), cobra.ShellCompDirectiveNoFileComp
			})
		}
	}
}

// CompleteImages completes the only argument, which is an image.
func (c *Console) CompleteImages(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.complete(cmd, begun, ofImages((*adminv1.Image).GetNames)), cobra.ShellCompDirectiveNoFileComp
}

// patience is how long a completion waits for the daemon.
const patience = time.Second

// harmless matches text that a shell takes as one word without special meaning, however its completion scripts quote.
var harmless = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$`)

// complete returns the daemon's values with the prefix begun. Errors are not printed, so that they do not disturb the
// command line.
func (c *Console) complete(cmd *cobra.Command, begun string, from source) []string {
	quick := *c
	quick.timeout = patience
	ctx, cancel := context.WithTimeout(cmd.Context(), patience)
	defer cancel()
	var all []string
	err := quick.Ask(ctx, func(ctx context.Context, api adminv1.PullRecordsClient) (err error) {
		all, err = from(ctx, api)
		return err
	})
	if err != nil {
		return nil
	}
	all = slices.DeleteFunc(all, func(s string) bool { return !strings.HasPrefix(s, begun) || !harmless.MatchString(s) })
	slices.Sort(all)
	return slices.Compact(all)
}
