package admission

import "context"

type clusterKey struct{}

// InCluster returns a context for what the API server of a cluster asks.
func InCluster(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, clusterKey{}, name)
}

// ClusterOf returns the name of the cluster that asks: "" for the one without a name, and for a node.
func ClusterOf(ctx context.Context) string {
	name, _ := ctx.Value(clusterKey{}).(string)
	return name
}

// Tenant returns a name for a namespace that no namespace of another cluster has.
func Tenant(ctx context.Context, namespace string) string {
	return ClusterOf(ctx) + "/" + namespace // a name of a cluster has no slash
}
