package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/internal/operator/apiserver"
	"github.com/pullgate/pullgate/internal/operator/cli"
	"github.com/pullgate/pullgate/internal/operator/fleetreport"
)

// reportRows is how many rows a table has at most; JSON and YAML have all.
const reportRows = 20

func reportCommand(c *cli.Console) *cobra.Command {
	var from apiserver.Options
	o := fleetreport.Options{Asked: "24h"}
	cmd := &cobra.Command{
		Use:   "report",
		Short: "Show for all nodes of a cluster whether pods would be refused, and which",
		Long: `Show for all nodes of a cluster whether pods were refused images or, on nodes in shadow
mode, would have been. Run it before you enforce. The first line is the answer:

    GO: 412 of 412 nodes, no pod would be refused in the last 24h
    NO-GO: 3 of 412 nodes would refuse 7 pods of 2 namespaces; 5 nodes unknown

It reads the Nodes and NodeReports at the API server with your kubeconfig, and needs the verb
list on both: the chart has the ClusterRole pullgate-reports-reader. It connects to no node.

A node is unknown, and the answer NO-GO, if it is not ready, has no report or one older than
25 minutes, has observed for less than --since, for example because pullgated was restarted,
or if its condition PullgateEnforcing is missing, old, Bypassed or Degraded. A report knows
only pods that were started in that time.

With an untested pull secret, the kubelet of an enforcing node pulls once, and the registry
decides. --accept-untested leaves these pods out.

Exit codes: 0 GO; 4 NO-GO; 1 it could not be asked; 2 as for every command.`,
		Example: `  kubectl pullgate report

  # One hour after a repair, for the nodes of a pool
  kubectl pullgate report --since 1h --selector pool=web

  # In a script: which namespaces have to do something?
  kubectl pullgate report -o json | jq -r '.refusals[].namespace' | sort -u`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&o.Asked, "since", o.Asked, "`age` of the oldest refusal that counts, at most 24h")
	cmd.Flags().StringVarP(&o.Selector, "selector", "l", "", "only nodes with these `labels`, as in kubectl get nodes")
	cmd.Flags().BoolVar(&o.AcceptUntested, "accept-untested", false,
		"leave out pods that have a pull secret for the image which was not tested")
	apiFlags(cmd, &from)
	output := cli.FormatFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if o.Since, err = cli.ParseAge(o.Asked); err != nil || o.Since > 24*time.Hour {
			return cli.Misused("write --since 24h, 1h or 30m; reports have the last 24 hours", "invalid --since %q", o.Asked)
		}
		api, err := openAPI(c, cmd, from)
		if err != nil {
			return err
		}
		defer api.Close()
		o.Now = c.Now()
		r, err := fleetreport.Ask(cmd.Context(), api, o)
		if err != nil {
			return err
		}
		if err := c.Print(output, r, func(p *cli.Page) { printReport(p, r) }); err != nil {
			return err
		}
		if r.Verdict != fleetreport.Go {
			return &cli.ExitError{Code: cli.ExitNeedsProof}
		}
		return nil
	}
	return cmd
}

func printReport(p *cli.Page, r *fleetreport.Report) {
	colour := cli.Good
	if r.Verdict != fleetreport.Go {
		colour = cli.Bad
	}
	p.Paint(colour, "%s", r.Summary)
	if n := len(r.NotLinux); n > 0 {
		p.Line("Not counted: %s without Linux: %s", cli.Count(n, "node", "nodes"), firstThree(r.NotLinux))
	}
	if len(r.Refusals) > 0 {
		for _, by := range []struct {
			head string
			key  func(fleetreport.Refusal) string
		}{
			{"NAMESPACE", func(f fleetreport.Refusal) string { return f.Namespace }},
			{"IMAGE", func(f fleetreport.Refusal) string { return f.Image }},
			{"REASON", func(f fleetreport.Refusal) string { return f.Reason }},
			{"NODE", func(f fleetreport.Refusal) string { return f.Node }},
		} {
			p.Gap()
			printGroups(p, by.head, r.Refusals, by.key)
		}
		p.Gap()
		printRefusals(p, r.Refusals)
	}
	if len(r.Unknown) > 0 {
		p.Gap()
		printUnknown(p, r.Unknown)
	}
}

// printGroups adds a table with the pods and nodes for each value, the one with most pods first.
func printGroups(p *cli.Page, head string, all []fleetreport.Refusal, key func(fleetreport.Refusal) string) {
	type group struct{ pods, nodes map[string]bool }
	groups := map[string]group{}
	for _, f := range all {
		g, ok := groups[key(f)]
		if !ok {
			g = group{map[string]bool{}, map[string]bool{}}
			groups[key(f)] = g
		}
		g.pods[f.Namespace+"/"+f.Pod], g.nodes[f.Node] = true, true
	}
	names := slices.SortedFunc(maps.Keys(groups), func(a, b string) int {
		return cmp.Or(len(groups[b].pods)-len(groups[a].pods), strings.Compare(a, b))
	})
	var rows [][]string
	for _, name := range names {
		rows = append(rows, []string{name, fmt.Sprint(len(groups[name].pods)), fmt.Sprint(len(groups[name].nodes))})
	}
	columns := []string{head, "PODS", "NODES"}
	if head == "NODE" {
		columns = columns[:2]
	}
	for i := range rows {
		rows[i] = rows[i][:len(columns)]
	}
	printRows(p, columns, rows)
}

func printRefusals(p *cli.Page, all []fleetreport.Refusal) {
	var rows [][]string
	for _, f := range all {
		secret := "none"
		if f.PullSecret {
			secret = "untested"
		}
		pod := f.Namespace + "/" + cmp.Or(f.Pod, "(unknown)")
		rows = append(rows, []string{pod, f.Image, f.Reason, secret, f.Node})
	}
	printRows(p, []string{"POD", "IMAGE", "REASON", "PULL SECRET", "NODE"}, rows)
}

func printUnknown(p *cli.Page, all []fleetreport.Unknown) {
	of := map[string][]string{}
	for _, u := range all {
		of[u.Reason] = append(of[u.Reason], u.Node)
	}
	var rows [][]string
	for _, reason := range slices.Sorted(maps.Keys(of)) {
		rows = append(rows, []string{reason, fmt.Sprint(len(of[reason])), firstThree(of[reason])})
	}
	printRows(p, []string{"UNKNOWN BECAUSE", "NODES", "WHICH"}, rows)
}

func firstThree(nodes []string) string {
	if len(nodes) > 3 {
		return strings.Join(nodes[:3], ", ") + ", …"
	}
	return strings.Join(nodes, ", ")
}

func printRows(p *cli.Page, head []string, rows [][]string) {
	p.Table(head, rows[:min(len(rows), reportRows)])
	if more := len(rows) - reportRows; more > 0 {
		p.Line("… and %d more; --output json has all", more)
	}
}
