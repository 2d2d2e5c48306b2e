package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/cli"
	"github.com/pullgate/pullgate/internal/operator/release"
)

const verifyReleaseLong = `Verify a directory with the files of a release of pullgate, without a network and before
anything of it is installed:

  - it has exactly the files that SHA256SUMS lists, with these sums;
  - each file, the image and each program in the image has a signature by the key;
  - the provenance is about these files, and its version and commit are those of the image;
  - both bills of materials list what the programs were linked from.

The key is that of the project, which is in this program if it is part of a release: the
version that you run verifies the next one. With --key it is another one. Get it from
another place than the release.

A release that was signed with a key made for the build is a test. It is refused, unless
--test-key says that it is known.

The exit code is 1 if anything is wrong, or if the directory cannot be read.`

func verifyReleaseCommand(c *cli.Console) *cobra.Command {
	var (
		key  string
		test bool
	)
	cmd := &cobra.Command{
		Use:   "verify-release DIR",
		Short: "Verify the files of a release and their signatures, without a network",
		Long:  verifyReleaseLong,
		Example: `  # Is this download the release of the project?
  pullgatectl verify-release ./pullgate-0.9.0

  # The same with a key that was given to you
  pullgatectl verify-release ./pullgate-0.9.0 --key pullgate.pub

  # Is this build of mine complete?
  make release VERSION=v0.9.0 && pullgatectl verify-release dist --test-key`,
		Args: cli.OneArgument("the directory of the release"),
	}
	o := cli.FormatFlag(cmd)
	cmd.Flags().StringVar(&key, "key", "", "`file` of the public key, in PEM form; the key of the project by default")
	cmd.Flags().BoolVar(&test, "test-key", false, "accept a test: use the key in the directory, which proves no origin")
	cmd.MarkFlagsMutuallyExclusive("key", "test-key")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		options := release.Options{PublicKey: release.ProjectKey(), TestKey: test}
		origin := "the key of the project in this program"
		switch {
		case key != "":
			data, err := os.ReadFile(key)
			if err != nil {
				return fmt.Errorf("--key: %w", err)
			}
			options.PublicKey, origin = data, key
		case test:
			origin = release.TestKeyFile
		case options.PublicKey == nil:
			return cli.Misused("get the public key of the project from another place than the release, and give it with --key",
				"this program was built without a key: it is not from a signed release")
		}
		r, err := release.VerifyDir(cmd.Context(), args[0], options)
		if err != nil {
			return err
		}
		if err := c.Print(o, r, func(p *cli.Page) { releasePage(p, r, origin) }); err != nil || len(r.Problems) == 0 {
			return err
		}
		return program.Hintf("do not install it", "%s is not a valid release: %s", args[0],
			cli.Count(len(r.Problems), "problem", "problems"))
	}
	return cmd
}

func releasePage(p *cli.Page, r *release.Report, origin string) {
	if r.Version != "" {
		p.Paint(cli.Bold, "pullgate %s, commit %s", r.Version, r.Commit)
	}
	p.Line("%-10s %s, %s", "key", r.Key, origin)
	if r.TestKey {
		p.Paint(cli.Heed, "%-10s TEST: the key was made for this build. This proves nothing about its origin.", "")
	}
	p.Line("%-10s %d, as listed in SHA256SUMS", "files", len(r.Artifacts))
	if len(r.Platforms) > 0 {
		p.Line("%-10s %s", "image", strings.Join(r.Platforms, ", "))
	}
	for n, problem := range r.Problems {
		p.Gap()
		p.PaintProse(cli.Bad, "", "%s: %s", problem.File, problem.What)
		if n == len(r.Problems)-1 || problem.Remedy != r.Problems[n+1].Remedy { // once for those that have the same
			p.Prose("  ", "%s", problem.Remedy)
		}
	}
	if len(r.Problems) == 0 {
		p.Paint(cli.Good, "%-10s all sums, signatures, provenance and bills of materials", "valid")
	}
}
