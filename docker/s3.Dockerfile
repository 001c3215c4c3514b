# s3proxy over a folder, as the local stack runs it, but not as root.
FROM andrewgaul/s3proxy:s3proxy-4.1.0

USER 0
RUN mkdir -p /data && chown 50000:0 /data && chmod 775 /data
USER 50000:0
EXPOSE 9000
