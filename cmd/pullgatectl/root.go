package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/pkg/ctl/link"
)

const long = `pullgatectl asks the pullgated of this node what it knows, and corrects it: which
credentials proved access to which image, who may use what and why.

Answers go to stdout, everything else to stderr.

Exit codes:

    0  done
    1  failed: the reason stands on stderr in a line, and mostly a hint in another
    2  wrong usage
    3  pullgated is not reached
    4  explain: the pod would need proof`

const examples = `  # How are daemon, store and runtime?
  pullgatectl status

  # Why does this pod not get its image, and what would change that?
  pullgatectl explain registry.example/team-a/app:1.4 --pod team-a/web-0

  # A credential has leaked: end what it proved, after a look at what that is
  pullgatectl revoke --secret team-a/regcred --dry-run
  pullgatectl revoke --secret team-a/regcred`

// rootCommand makes the tree of commands. What it returns beside that says whether a command has begun: what
// fails before is wrong usage.
func rootCommand(c *console) (*cobra.Command, *bool) {
	root := groupCommand("pullgatectl", "Show and correct what the pullgated of this node knows", long)
	root.Example = examples
	root.SilenceUsage, root.SilenceErrors = true, true
	root.PersistentFlags().StringVar(&c.endpoint, "endpoint", "", "`socket` of pullgated's admin API, else $"+endpointVariable+", else "+link.Default)
	root.PersistentFlags().DurationVar(&c.timeout, "timeout", 10*time.Second, "how long to wait for one answer; 0 is without end, and so are watch and backup")
	root.SetFlagErrorFunc(wrongFlag)
	// A group is run to refuse it, and is no usage.
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(), "{{if .Runnable}}", "{{if and .Runnable (not .HasAvailableSubCommands)}}", 1))

	// A group of commands is a file, and a command a constructor that takes the console.
	root.AddCommand(
		statusCommand(c),
		imagesCommand(c),
		intentsCommand(c),
		grantsCommand(c),
		explainCommand(c),
		revokeCommand(c),
		preloadedCommand(c),
		distrustCommand(c),
		storeCommand(c),
		doctorCommand(c),
		watchCommand(c),
		nodeCommand(c),
		versionCommand(c),
		docsCommand(c),
	)

	root.SetHelpCommand(helpCommand())
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" {
			asGroup(cmd)
		}
	}

	begun := false
	note(root, &begun)
	return root, &begun
}

// note has every command say that it has begun.
func note(cmd *cobra.Command, begun *bool) {
	if do := cmd.RunE; do != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			*begun = true
			return do(cmd, args)
		}
	}
	for _, sub := range cmd.Commands() {
		note(sub, begun)
	}
}

func wrongFlag(cmd *cobra.Command, err error) error { return wrongUsage(cmd, err) }

// groupCommand makes a command that does nothing but hold others. Alone it is wrong usage, so that a script does not
// take a missing word for success.
func groupCommand(use, short, long string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Long: long}
	cmd.AddCommand(commands...)
	asGroup(cmd)
	return cmd
}

func asGroup(cmd *cobra.Command) {
	cmd.Args = cobra.ArbitraryArgs // cobra's own check lets what is unknown below a group pass
	cmd.SuggestionsMinimumDistance = 2
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		hint := "see " + cmd.CommandPath() + " --help"
		if len(args) == 0 {
			return misused(hint, "%s needs a command: %s", cmd.CommandPath(), strings.Join(names(cmd), ", "))
		}
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			hint = fmt.Sprintf("is it %s? See %s --help", strings.Join(near, " or "), cmd.CommandPath())
		}
		return misused(hint, "%s has no command %q", cmd.CommandPath(), args[0])
	}
}

// helpCommand is cobra's own, but that a command which is not there is wrong usage.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [command]",
		Short: "Explain a command",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if of, _, err := cmd.Root().Find(args); err == nil {
				return names(of), cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			of, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return misused("see pullgatectl --help", "there is no command %q", strings.Join(args, " "))
			}
			return of.Help()
		},
	}
}

func names(cmd *cobra.Command) []string {
	var all []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "help" {
			all = append(all, sub.Name())
		}
	}
	return all
}
