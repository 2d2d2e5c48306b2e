package requirement

// An extension of certificates.
type extension struct{ name, id string }

// extensions are those that a rule can name, with their object identifiers.
func extensions() []extension {
	const arc = "1.3.6.1.4.1.57264.1."
	return []extension{
		{"githubWorkflowTrigger", arc + "2"},
		{"githubWorkflowSha", arc + "3"},
		{"githubWorkflowName", arc + "4"},
		{"githubWorkflowRepository", arc + "5"},
		{"githubWorkflowRef", arc + "6"},
	}
}

// ExtensionID returns the object identifier of a certificate extension by its name in policies.
func ExtensionID(name string) (id string, ok bool) {
	for _, e := range extensions() {
		if e.name == name {
			return e.id, true
		}
	}
	return "", false
}

// ExtensionName returns the name in policies of a certificate extension, the identifier itself if it has none.
func ExtensionName(id string) string {
	for _, e := range extensions() {
		if e.id == id {
			return e.name
		}
	}
	return id
}

// ExtensionNames returns the names of all extensions that a rule can have.
func ExtensionNames() []string {
	var names []string
	for _, e := range extensions() {
		names = append(names, e.name)
	}
	return names
}
