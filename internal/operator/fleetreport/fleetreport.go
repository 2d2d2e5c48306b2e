// Package fleetreport answers for all nodes of a cluster whether pods would be refused, from the Nodes and NodeReports
// at the API server. What is not known of a node is never taken for good.
package fleetreport

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pullgate/pullgate/internal/fleet/api"
	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/apiserver"
	"github.com/pullgate/pullgate/internal/operator/cli"
	"github.com/pullgate/pullgate/pkg/policy"
)

const (
	// pageOf is how many objects a request asks for. A Node with many images has 40 KiB, and an answer is bounded.
	pageOf = 250
	// reportAge is how old a report may be: a node writes it every 10 minutes, and one write may fail.
	reportAge = 25 * time.Minute
	clockSkew = 5 * time.Minute // how far the clock of a node may be ahead
)

// Verdicts.
const (
	Go   = "GO"    // no pod would be refused, on any node
	NoGo = "NO-GO" // a pod would be refused, or a node is unknown
)

// Why a node is unknown.
const (
	NotReady      = "the node is not ready"
	NoReport      = "it has no report"
	OtherOwner    = "its report belongs to an earlier node of this name"
	OtherFormat   = "its report has another format"
	Old           = "its report is old"
	Clock         = "its clock is ahead"
	NoCondition   = "it has no condition " + podsource.ConditionType
	OldCondition  = "its condition is old"
	BadCondition  = "its condition is " // and the reason
	OtherSettings = "its configuration has changed since the report"
	NoKubelet     = "no kubelet is seen to use pullgated"
	NeverVerify   = "its policy is NeverVerify, which judges nothing"
	ShortWindow   = "it has not observed for so long"
	TooMany       = "its report has no room for all refusals"
)

// Options say what is asked.
type Options struct {
	Since    time.Duration
	Asked    string // Since as it was written
	Selector string // of the labels of nodes; "" is every node
	// AcceptUntested leaves out pods that have a pull secret for the image: the registry decides when it is first used.
	AcceptUntested bool
	Now            time.Time
}

// A Report is the answer for all nodes.
type Report struct {
	Verdict string `json:"verdict"`
	Summary string `json:"summary"`
	Since   string `json:"since"`
	Nodes   int    `json:"nodes"` // that were asked about
	// Refusing nodes have refused pods, or would have; Unknown may have. All others are good.
	Refusing   int `json:"refusingNodes"`
	Pods       int `json:"pods"`
	Namespaces int `json:"namespaces"`
	// Accepted is how many pods were left out because of Options.AcceptUntested.
	Accepted  int       `json:"acceptedPods"`
	NotLinux  []string  `json:"notLinuxNodes"` // by their label; they are not asked about
	Truncated bool      `json:"truncated"`     // there are more refusals
	Refusals  []Refusal `json:"refusals"`
	Unknown   []Unknown `json:"unknown"`
}

// A Refusal is one on a node.
type Refusal struct {
	Node string `json:"node"`
	api.Refusal
}

// An Unknown is a node of which it is not known whether it would refuse pods.
type Unknown struct {
	Node   string `json:"node"`
	Reason string `json:"reason"`
}

// node is what is needed of a Node.
type node struct {
	uid     string
	unknown string // why, by the Node; "" if it is known
	message string // of the condition
	// What the report says.
	refused []Refusal
	doubt   string // why the node is unknown by its report
}

// Ask reads Nodes and NodeReports. The caller needs the verb list on both.
func Ask(ctx context.Context, client *apiserver.Client, o Options) (*Report, error) {
	r := &Report{Since: o.Asked, Refusals: []Refusal{}, Unknown: []Unknown{}, NotLinux: []string{}}
	nodes := map[string]*node{}
	path := "/api/v1/nodes?limit=" + fmt.Sprint(pageOf)
	if o.Selector != "" {
		path += "&labelSelector=" + url.QueryEscape(o.Selector)
	}
	err := each(ctx, client, path, func() { clear(nodes); r.NotLinux = r.NotLinux[:0] }, func(n *nodeObject) {
		os, installed := n.Metadata.Labels[corev1.LabelOSStable], n.Metadata.Labels[api.ClaimLabel] != ""
		if os != "" && os != string(corev1.Linux) && !installed {
			r.NotLinux = append(r.NotLinux, n.Metadata.Name)
			return
		}
		nodes[n.Metadata.Name] = n.judged(o.Now)
	})
	if err != nil {
		return nil, asked("nodes", err)
	}
	if len(nodes) == 0 {
		return nil, program.Hintf("give --selector labels that nodes have; kubectl get nodes --show-labels shows them",
			"no Linux node found")
	}
	reported := map[string]bool{}
	path = fmt.Sprintf("/apis/%s/%s/nodereports?limit=%d", api.Group, api.Version, pageOf)
	err = each(ctx, client, path, func() { clear(reported) }, func(n *api.NodeReport) {
		if of := nodes[n.Name]; of != nil && !reported[n.Name] {
			reported[n.Name] = true
			of.add(n, o)
		}
	})
	if err != nil {
		return nil, asked("nodereports.fleet.pullgate.dev", err)
	}
	for name, n := range nodes {
		if !reported[name] {
			n.refused, n.doubt = nil, NoReport
		}
	}
	r.sum(nodes, o)
	return r, nil
}

func asked(what string, err error) error {
	hint := "kubectl get nodes must work with the same kubeconfig and context"
	switch {
	case apierrors.IsForbidden(err):
		hint = "ask an administrator for the ClusterRole pullgate-reports-reader, which the chart has"
	case apierrors.IsNotFound(err):
		hint = "install the chart, which has the definition of NodeReport, or apply its crds/nodereports.yaml"
	}
	return program.Hintf(hint, "list %s: %w", what, err)
}

// nodeObject is what is decoded of a Node: all of it would need much memory.
type nodeObject struct {
	Metadata struct {
		Name   string            `json:"name"`
		UID    string            `json:"uid"`
		Labels map[string]string `json:"labels"`
	} `json:"metadata"`
	Status struct {
		Conditions []corev1.NodeCondition `json:"conditions"`
	} `json:"status"`
}

// each calls f for each object of a list, page by page. It calls begin before the first page: if a page has expired,
// the list is read again.
func each[T any](ctx context.Context, client *apiserver.Client, path string, begin func(), f func(*T)) error {
	const tries = 3
	for try := 1; ; try++ {
		begin()
		err := pages(ctx, client, path, f)
		if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) || try == tries {
			return err
		}
	}
}

func pages[T any](ctx context.Context, client *apiserver.Client, path string, f func(*T)) error {
	next := ""
	for {
		var page struct {
			Metadata metav1.ListMeta `json:"metadata"`
			Items    []T             `json:"items"`
		}
		at := path
		if next != "" {
			at += "&continue=" + url.QueryEscape(next)
		}
		if err := client.Get(ctx, at, &page); err != nil {
			return err
		}
		for i := range page.Items {
			f(&page.Items[i])
		}
		if next = page.Metadata.Continue; next == "" {
			return nil
		}
	}
}

// judged says whether the state of the node is known.
func (n *nodeObject) judged(now time.Time) *node {
	of := &node{uid: n.Metadata.UID, unknown: NoCondition}
	ready := false
	for _, c := range n.Status.Conditions {
		ready = ready || c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		if c.Type != podsource.ConditionType {
			continue
		}
		of.message, of.unknown = c.Message, ""
		switch {
		case now.Sub(c.LastHeartbeatTime.Time) > api.ConditionHeartbeat:
			of.unknown = OldCondition
		case c.Status != corev1.ConditionTrue && c.Reason != "Shadow":
			of.unknown = BadCondition + c.Reason
		}
	}
	if !ready {
		of.unknown = NotReady
	}
	return of
}

// add judges the report of the node, also a second time.
func (n *node) add(report *api.NodeReport, o Options) {
	r := &report.Report
	n.refused, n.doubt = nil, ""
	owner := func(o metav1.OwnerReference) bool { return o.Kind == "Node" && string(o.UID) == n.uid }
	switch { // then neither are its rows of use
	case r.Format != api.ReportFormat:
		n.doubt = OtherFormat
	case !slices.ContainsFunc(report.OwnerReferences, owner):
		n.doubt = OtherOwner
	case r.Heartbeat.Sub(o.Now) > clockSkew:
		n.doubt = Clock
	case o.Now.Sub(r.Heartbeat.Time) > reportAge:
		n.doubt = Old
	}
	if n.doubt != "" {
		return
	}
	for _, row := range r.Refused {
		if o.Now.Sub(row.Last.Time) <= o.Since {
			n.refused = append(n.refused, Refusal{report.Name, row})
		}
	}
	switch {
	case r.Mode != api.ReportShadow && r.Mode != api.ReportEnforcing:
		n.doubt = NeverVerify
	case !strings.Contains(n.message, "configuration "+r.Configuration):
		n.doubt = OtherSettings
	case r.Heartbeat.Sub(r.KubeletSeen.Time) > clockSkew:
		n.doubt = NoKubelet
	case o.Now.Sub(r.ObservedSince.Time) < o.Since:
		n.doubt = ShortWindow
	case r.Truncated:
		n.doubt = TooMany
	}
}

// untested reports whether a pull secret that was not tested may settle a refusal.
func untested(r api.Refusal) bool {
	switch policy.Reason(r.Reason) {
	case policy.NotProved, policy.ProofExpired, policy.NodeCredentials, policy.Untracked, policy.Pulling:
		return r.PullSecret
	}
	return false
}

func (r *Report) sum(nodes map[string]*node, o Options) {
	pods, namespaces, accepted := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for name, n := range nodes {
		refuses := false
		for _, row := range n.refused {
			pod := row.Namespace + "/" + row.Pod
			if row.Pod == "" {
				pod = row.Namespace + "/" + name + "/" + row.Image
			}
			if o.AcceptUntested && untested(row.Refusal) {
				accepted[pod] = true
				continue
			}
			refuses = true
			pods[pod], namespaces[row.Namespace] = true, true
			r.Refusals = append(r.Refusals, row)
		}
		switch {
		case refuses:
			r.Refusing++
			r.Truncated = r.Truncated || n.doubt == TooMany
		case n.unknown != "" || n.doubt != "":
			r.Unknown = append(r.Unknown, Unknown{name, cmp.Or(n.unknown, n.doubt)})
		}
	}
	r.Nodes, r.Pods, r.Namespaces, r.Accepted = len(nodes), len(pods), len(namespaces), len(accepted)
	slices.SortFunc(r.Refusals, func(a, b Refusal) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Image, b.Image),
			cmp.Compare(a.Node, b.Node), cmp.Compare(a.Reason, b.Reason))
	})
	slices.SortFunc(r.Unknown, func(a, b Unknown) int { return cmp.Compare(a.Node, b.Node) })
	r.summarize()
}

func (r *Report) summarize() {
	r.Verdict = NoGo
	unknown := ""
	if n := len(r.Unknown); n > 0 {
		unknown = fmt.Sprintf("; %s unknown", cli.Count(n, "node", "nodes"))
	}
	of := fmt.Sprintf("of %s", cli.Count(r.Nodes, "node", "nodes"))
	switch {
	case r.Refusing > 0:
		least := ""
		if r.Truncated {
			least = "at least "
		}
		r.Summary = fmt.Sprintf("%d %s would refuse %s%s of %s%s", r.Refusing, of, least, cli.Count(r.Pods, "pod", "pods"),
			cli.Count(r.Namespaces, "namespace", "namespaces"), unknown)
	case unknown != "":
		r.Summary = fmt.Sprintf("%d %s, no pod would be refused in the last %s%s", r.Nodes-len(r.Unknown), of, r.Since,
			unknown)
	default:
		r.Verdict = Go
		r.Summary = fmt.Sprintf("%d %s, no pod would be refused in the last %s", r.Nodes, of, r.Since)
	}
	if r.Accepted > 0 {
		r.Summary += fmt.Sprintf("; %s with an untested pull secret accepted", cli.Count(r.Accepted, "pod", "pods"))
	}
	r.Summary = r.Verdict + ": " + r.Summary
}
