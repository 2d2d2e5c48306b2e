package cli

import (
	"cmp"
	"fmt"
	"strings"

	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// Status first prints whether pullgated enforces, under which policy and with which connections, and the configuration
// file. States that need action by an operator are in colour.
func (v View) Status(p *Page, s *adminv1.GetStatusResponse) {
	line := func(c Colour, name, format string, args ...any) {
		p.Paint(c, "%-14s %s", name, fmt.Sprintf(format, args...))
	}
	switch {
	case s.GetEnforcing():
		line(Good, "Enforcing", "yes")
	case s.GetPolicy() == "NeverVerify":
		line(Heed, "Enforcing", "no, because of the policy: a missing proof is recorded and counted, and denies nothing")
	case s.GetPolicy() == "": // from an older pullgated
		line(Heed, "Enforcing", "no: a missing proof is recorded and counted, and denies nothing")
	default:
		line(Heed, "Enforcing", "no, shadow mode: a missing proof is recorded and counted, and denies nothing")
	}
	if s.GetPolicy() != "" {
		line(Plain, "Policy", "%s", s.GetPolicy())
	}
	store := s.GetStore()
	line(Plain, "Store", "%s, format %d, %s", store.GetPath(), store.GetFormat(), Size(store.GetBytes()))
	counts := []string{
		Count(store.GetRecords(), "record", "records"), Count(store.GetIntents(), "intent", "intents"), Count(store.GetMarks(), "preloaded mark", "preloaded marks"),
	}
	if n := store.GetEndorsements(); n > 0 { // only on nodes that verify signatures
		counts = append(counts, Count(n, "endorsement", "endorsements"))
	}
	line(Plain, "", "%s", strings.Join(counts, ", "))
	if d := store.GetDistrust(); d != nil {
		line(Bad, "", "in distrust since %s: %s", v.date(d.GetSince()), d.GetReason())
		line(Bad, "", "pullgatectl distrust end --dry-run shows which images ending it opens")
	}
	runtime := s.GetRuntime()
	if runtime.GetUp() {
		line(Good, "Runtime", "%s, up%s", runtime.GetEndpoint(), also(runtime.GetName(), runtime.GetVersion()))
	} else {
		line(Bad, "Runtime", "%s, NOT reached%s", runtime.GetEndpoint(), also(runtime.GetName(), runtime.GetVersion()))
	}
	switch source := s.GetPodSource(); {
	case source == nil:
		line(Plain, "Pod source", "none")
	case source.GetSynced():
		line(Good, "Pod source", "node %s, synced, %s", source.GetNode(), Count(source.GetPods(), "pod", "pods"))
	default:
		line(Heed, "Pod source", "node %s, NOT synced with the API server, %s known", cmp.Or(source.GetNode(), "unknown"), Count(source.GetPods(), "pod", "pods"))
	}
	line(Plain, "Grants", "%d", s.GetGrants())
	switch log := s.GetDecisionLog(); {
	case log == nil:
		line(Plain, "Decision log", "none")
	case log.GetDropped() == 0:
		line(Plain, "Decision log", "%s", log.GetPath())
	default:
		line(Heed, "Decision log", "%s, %s dropped", log.GetPath(), Count(log.GetDropped(), "decision", "decisions"))
	}
	for _, l := range s.GetNotListening() {
		line(Bad, "Listener", "%s is not bound, trying again: %s", l.GetField(), l.GetError())
	}
	file := s.GetConfigurationPath()
	switch {
	case file == "": // from an older pullgated
	case s.GetConfigurationFound():
		file += ", "
	default:
		file += " not found: using defaults, "
	}
	switch r := s.GetReload(); {
	case r == nil:
	case r.GetError() == "":
		line(Plain, "Configuration", "%sread %s", file, v.ago(r.GetAt()))
	default:
		line(Bad, "Configuration", "%sread %s and invalid, the previous one is in force: %s", file, v.ago(r.GetAt()), r.GetError())
	}
	line(Plain, "Version", "%s (commit %s)", s.GetVersion(), s.GetCommit())
	line(Plain, "Started", "%s", v.ago(s.GetStarted()))
}

// Configuration prints the configuration in force.
func (v View) Configuration(p *Page, s *adminv1.GetStatusResponse) {
	p.Gap()
	p.Line("Configuration in force:")
	p.Gap()
	p.Text("  ", s.GetConfiguration())
}

// also returns the known parts of a runtime's name and version.
func also(name, version string) string {
	if name == "" {
		return ""
	}
	return ", " + strings.TrimSpace(name+" "+version)
}
