package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// Root makes the command that contains all others, with the flags of every command.
func (c *Console) Root(use, short, long string, commands ...*cobra.Command) *cobra.Command {
	root := Group(use, short, long, commands...)
	root.SilenceUsage, root.SilenceErrors = true, true
	root.PersistentFlags().StringVar(&c.endpoint, "endpoint", "", "`socket` of pullgated's admin API, else $"+EndpointVariable+", else "+Default)
	root.PersistentFlags().DurationVar(&c.timeout, "timeout", 10*time.Second, "how long to wait for one answer; 0 is without end, and so are watch and backup")
	root.SetFlagErrorFunc(wrongFlag)
	// A group can run only to return an error, so that is not a usage.
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(), "{{if .Runnable}}", "{{if and .Runnable (not .HasAvailableSubCommands)}}", 1))

	root.SetHelpCommand(helpCommand())
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" {
			asGroup(cmd)
		}
	}
	return root
}

// OneArgument accepts exactly one argument; name describes it, for example IMAGE.
func OneArgument(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch len(args) {
		case 0:
			return fmt.Errorf("%s needs one argument, %s", cmd.CommandPath(), name)
		case 1:
			return nil
		default:
			return fmt.Errorf("%s takes one argument, %s, and not %d: %q", cmd.CommandPath(), name, len(args), args)
		}
	}
}

func wrongFlag(cmd *cobra.Command, err error) error { return wrongUsage(cmd, err) }

// Group makes a command that only contains others. Without a subcommand it is wrong usage, so that a script does not
// take a missing word for success.
func Group(use, short, long string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Long: long}
	cmd.AddCommand(commands...)
	asGroup(cmd)
	return cmd
}

func asGroup(cmd *cobra.Command) {
	cmd.Args = cobra.ArbitraryArgs // cobra's own check accepts unknown words below a group
	cmd.SuggestionsMinimumDistance = 2
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		hint := "see " + cmd.CommandPath() + " --help"
		if len(args) == 0 {
			return Misused(hint, "%s needs a command: %s", cmd.CommandPath(), strings.Join(names(cmd), ", "))
		}
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			hint = fmt.Sprintf("is it %s? See %s --help", strings.Join(near, " or "), cmd.CommandPath())
		}
		return Misused(hint, "%s has no command %q", cmd.CommandPath(), args[0])
	}
}

// helpCommand is cobra's own, except that an unknown command is wrong usage.
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
				return Misused("see pullgatectl --help", "unknown command %q", strings.Join(args, " "))
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
